import io
from dataclasses import replace

import pytest
from rich.console import Console

import legroom
from legroom import variants, ways
from legroom.report import print_plan, print_ways
from legroom.report._plan_text import format_added
from tests.made_up_plan import made_up_report, with_sweep, with_tiers


def text_of(report, width=140, **options):
    console = Console(file=io.StringIO(), width=width)
    print_plan(report, console, **options)
    return console.file.getvalue()


def words_of(report, **options):
    return " ".join(text_of(report, **options).split())


def test_the_headline_says_peaks_and_price():
    text = words_of(made_up_report())
    assert "The plain step peaks at 512.0 MiB; plans go down to 200.0 MiB, 39 % of it." in text
    assert "It fits into 300.0 MiB at +24.5 ms (6.1 % of a step)." in text
    assert "step 400 ms, 93 % of that measured, the rest modelled" in text
    assert "bitwise, with hold, remake, replay" in text


def test_the_frontier_lists_every_budget():
    lines = text_of(made_up_report()).splitlines()
    row = next(line for line in lines if line.split()[:2] == ["400.0", "MiB"])
    assert row.split() == "400.0 MiB 78 % 396.0 MiB +8.0 ms 2.0 % 0.2 % milp".split()
    assert sum("milp" in line or "plain" in line for line in lines) >= 4


def test_presets_are_listed_with_what_they_do():
    text = text_of(made_up_report())
    (row,) = [line for line in text.splitlines() if "checkpoint each block" in line]
    assert "210.0 MiB" in row
    assert "+100 ms" in row


def test_decisions_are_grouped_largest_first():
    text = text_of(made_up_report(), width=180)
    first, second, third = (
        text.index("transformer.h.0–11.mlp.act"),
        text.index("transformer.h.0–11.attn"),
        text.index("transformer.h.*.dropout"),
    )
    assert first < second < third
    assert "models/gpt.py:40" in text
    assert "remaking is cheap" in text
    assert "Other formulas in backward" in text
    assert "relu-from-input" in text


def with_long_names(report):
    """As with Hugging Face's models: long paths, long modules, long reasons."""
    folder, module = "transformers/models/bert/modeling_bert_of_someone.py", "bert.encoder.layers"
    decisions = tuple(
        replace(
            each,
            line=f"{folder}:{each.line.partition(':')[2]}00",
            module=f"{module}.{each.module}",
            reason="its bytes cost more time to give back than those of others do",
        )
        for each in report.chosen.decisions
    )
    alive = tuple(replace(each, line=f"{folder}:4099") for each in report.chosen.alive_at_peak)
    return replace(report, chosen=replace(report.chosen, decisions=decisions, alive_at_peak=alive))


def rows_below(title, text):
    lines = text[text.index(title) :].splitlines()[1:]
    end = next(i for i, line in enumerate(lines) if not line.strip())
    return lines[0], lines[1:end]


@pytest.mark.parametrize("width", [60, 80, 100, 120, 160, 200])
def test_long_paths_keep_rows_to_one_line(width):
    text = text_of(with_long_names(made_up_report()), width=width)
    header, rows = rows_below("What it does to which lines", text)
    assert len(rows) == 3
    assert ("reason" in header) == (width >= 160)
    assert "way" in header
    for row, line in zip(rows, (4000, 2200, 5000), strict=True):
        assert f".py:{line}" in row
        assert " remake " in row or " replay " in row
    header, rows = rows_below("Alive at the plan's peak", text)
    assert all("py:4099" in row for row in rows)
    assert max(len(line) for line in text.splitlines()) <= width


def test_presets_take_a_line_each():
    header, rows = rows_below("What recipes", text_of(made_up_report(), width=80))
    assert "what it does" in header
    assert len(rows) == len(made_up_report().presets)
    header, rows = rows_below("What recipes", text_of(made_up_report(), width=60))
    assert "what it does" not in header


def test_what_is_held_for_others_releases_nothing():
    report = made_up_report()
    held = tuple(
        replace(each, num_bytes=0) if each.way == "hold" else each
        for each in report.chosen.decisions
    )
    text = text_of(replace(report, chosen=replace(report.chosen, decisions=held)))
    _, rows = rows_below("What it uses", text)
    (row,) = [row for row in rows if row.startswith("hold")]
    assert row.split() == ["hold", "12", "0", "0", "0"]


def test_what_is_held_elsewhere_says_where():
    lines = text_of(with_tiers(made_up_report()), width=180).splitlines()
    assert sum("bits on disk" in line for line in lines) == 2
    assert not any("host on host" in line for line in lines)
    assert sum("host" in line.split() for line in lines) == 2


def test_rows_bound_the_tables():
    text = words_of(made_up_report(), num_rows=1)
    assert "… and 2 more, which release 40.0 MiB" in text
    assert "40.0 MiB … and 1 more" in text  # alive at the peak
    assert "transformer.h.*.dropout" not in text


def test_what_is_alive_at_the_peak_is_shown():
    text = words_of(made_up_report())
    assert "Alive at the plan's peak, in backward" in text
    assert "64.0 MiB stash lm_head.addmm models/gpt.py:99" in text


def test_what_is_not_planned_is_said():
    text = words_of(made_up_report())
    assert "2 pieces of DataParallel (5.00 MiB): they run in other threads" in text
    assert "the loss function: it is not captured" in text
    whole = replace(made_up_report(), not_planned=())
    assert "nothing: the whole step was captured" in words_of(whole)


def test_a_time_limit_is_admitted():
    report = made_up_report()
    cut = replace(report, chosen=replace(report.chosen, timed_out=True, gap=0.12))
    text = words_of(cut)
    assert "reached its time limit after 4 s: this is the best plan so far" in text
    assert "at most 12 % slower than the best there is" in text
    assert "time limit" not in words_of(report)


@pytest.mark.parametrize(
    ("share", "words"),
    [(1.0, "all times measured"), (0.0, "all times modelled, none measured")],
)
def test_measured_and_modelled_times_are_told_apart(share, words):
    assert words in words_of(replace(made_up_report(), measured_share=share))


def test_a_budget_above_the_peak_changes_nothing():
    report = made_up_report()
    chosen = replace(report.chosen, budget_bytes=10**9, added_ms=0.0, decisions=(), variants=())
    assert "It fits into 953.7 MiB as it is." in words_of(replace(report, chosen=chosen))


def test_without_a_budget_only_the_frontier_is_shown():
    text = text_of(replace(made_up_report(), chosen=None))
    assert "Frontier" in text
    assert "The plan for" not in text
    assert "It fits into" not in text


def test_without_points_there_is_no_frontier():
    text = text_of(replace(made_up_report(), frontier=(), presets=()))
    assert "Frontier" not in text
    assert "The plan for" in text


def test_the_largest_value_that_fits_is_said():
    text = words_of(with_sweep(made_up_report()))
    assert "The largest batch-size that fits is 10." in text
    assert "11 660.0 MiB 330.0 MiB no" in text


def test_the_end_of_the_range_is_not_called_the_largest():
    report = with_sweep(made_up_report())
    fitting = tuple(point for point in report.sweep if point.value <= 10)
    text = words_of(replace(report, sweep=fitting))
    assert "batch-size 10 fits and is the end of the range; larger may fit too." in text
    assert "The largest" not in text


def test_a_share_stands_beside_the_bytes_that_it_means():
    text = words_of(replace(made_up_report(), asked_budget="50 % of the peak"))
    assert "It fits into 300.0 MiB (50 % of the peak) at +24.5 ms" in text


def test_square_brackets_in_names_are_not_markup():
    assert "python [bold]x" in text_of(replace(made_up_report(), target="python [bold]x"))


def test_show_prints_plans_too(capsys):
    legroom.show(made_up_report())
    assert "The plain step peaks at" in capsys.readouterr().out


@pytest.mark.parametrize(("ms", "text"), [(0, "0"), (3.2, "+3.2 ms"), (-0.5, "−500 µs")])
def test_differences_have_a_sign(ms, text):
    assert format_added(ms) == text


def test_every_way_and_variant_is_listed():
    console = Console(file=io.StringIO(), width=200)
    print_ways(console)
    text = console.file.getvalue()
    for registry in (ways, variants):
        for name in registry.names():
            assert name in text
            assert registry.get(name).exactness.value in text

import io

import pytest
import torch
from rich.console import Console
from torch import nn

import legroom
from legroom.meter import Kind
from legroom.report import print_profile
from legroom.units import format_bytes


@pytest.fixture(scope="module")
def profiled():
    net = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 8))
    optimizer = torch.optim.Adam(net.parameters())

    def step():
        optimizer.zero_grad()
        net(torch.randn(64, 8)).pow(2).mean().backward()
        optimizer.step()

    return legroom.profile(step)


def text_of(profile, width=120, **options):
    console = Console(file=io.StringIO(), width=width)
    print_profile(profile, console, **options)
    return console.file.getvalue()


def test_every_kind_and_the_total_are_in_the_table(profiled):
    text = text_of(profiled)
    assert [kind.title for kind in Kind if kind.title not in text] == []
    (total,) = [line for line in text.splitlines() if line.startswith("total")]
    assert total.split() == ["total", *format_bytes(profiled.peak_bytes).split(), "100", "%"]


def test_the_verdict_says_peak_phase_and_largest_kind(profiled):
    text = " ".join(text_of(profiled).split())
    largest = max(Kind, key=lambda kind: profiled.kinds[kind.value])
    assert f"Peak {format_bytes(profiled.peak_bytes)} in {profiled.peak_phase}" in text
    assert f"Most of it is {largest.title}" in text


def test_rows_bound_the_tables(profiled):
    assert "and " in text_of(profiled, num_rows=1)
    assert text_of(profiled, num_rows=1).count("test_text.py:") < text_of(profiled).count(
        "test_text.py:"
    )


@pytest.mark.parametrize(("width", "has_code"), [(80, False), (120, True)])
def test_long_paths_keep_rows_to_one_line(profiled, width, has_code):
    import dataclasses

    folder = "transformers/models/bert/modeling_bert_of_someone.py"
    code = "attention = torch.nn.functional.softmax(scores, dim=-1)"
    long = dataclasses.replace(
        profiled,
        lines=[
            dataclasses.replace(use, file=folder, line=4099, called_peak_bytes=1, is_user=True)
            for use in profiled.lines
        ],
        sources={folder: "\n" * 4098 + code},
    )
    text = text_of(long, width=width)
    heaviest, own = text[text.index("Heaviest lines") :].split("Your lines, calls included")
    own = own[: own.index("Not observed")]
    assert heaviest.count("py:4099") == own.count("py:4099") == len(profiled.lines)
    assert ("attention = tor" in heaviest) == has_code
    assert "attention = torch." in own
    assert max(len(line) for line in text.splitlines()) <= width


def test_limits_are_always_shown(profiled):
    assert "Not observed" in text_of(profiled)
    assert "oneDNN" in text_of(profiled)


def test_an_incomplete_step_is_called_so(profiled):
    import dataclasses

    cut = dataclasses.replace(profiled, is_complete=False, step_ms=None, resident_peak_bytes=None)
    assert "The step did not end" in " ".join(text_of(cut).split())


def test_square_brackets_in_names_are_not_markup(profiled):
    import dataclasses

    strange = dataclasses.replace(profiled, command="python [bold]train.py")
    assert "python [bold]train.py" in text_of(strange)


def test_show_prints_where_there_is_no_notebook(profiled, capsys):
    legroom.show(profiled)
    assert "Memory at the peak" in capsys.readouterr().out

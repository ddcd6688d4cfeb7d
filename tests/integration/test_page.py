"""The page in a browser: opened offline, its numbers read back and compared with the profile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from legroom.meter import Finding, Kind, Limit, Profile, profile
from legroom.units import format_bytes, format_ms, format_share
from tests.integration.browser import HOSTILE, OpenPage, launch, open_page

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launch() as chromium:
        yield chromium


def training_step(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()

    return step


def gpt2_step() -> Callable[[], None]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=3, n_embd=32, n_head=2, vocab_size=500, n_positions=64, use_cache=False
    )
    tokens = torch.randint(0, 500, (2, 64))
    return training_step(GPT2LMHeadModel(config), {"input_ids": tokens, "labels": tokens})


def resnet50_step() -> Callable[[], None]:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(
        embedding_size=16,
        hidden_sizes=[32, 64, 96, 128],
        depths=[3, 4, 6, 3],
        layer_type="bottleneck",
        num_labels=10,
    )
    model = ResNetForImageClassification(config).train()
    images, labels = torch.randn(2, 3, 64, 64), torch.randint(0, 10, (2,))
    return training_step(model, {"pixel_values": images, "labels": labels})


def pixel_of(opened: OpenPage, ms: float) -> tuple[float, float]:
    """Where on the screen the timeline has that time, in the middle of its height."""
    left, middle = opened.point_in("#timeline-chart", 0, 0.5)
    script = (
        "(ms) => echarts.getInstanceByDom(document.getElementById('timeline-chart'))"
        ".convertToPixel({gridIndex: 0}, [ms, 0])[0]"
    )
    return left + opened.page.evaluate(script, ms), middle


OpenFunction = Callable[[Profile], OpenPage]


@pytest.fixture(scope="module")
def profiles() -> dict[str, Profile]:
    torch.manual_seed(0)
    return {"gpt2": profile(gpt2_step()), "resnet50": profile(resnet50_step())}


@pytest.fixture
def open_profile(browser: Any, tmp_path: Path) -> Iterator[OpenFunction]:
    pages: list[OpenPage] = []

    def open_one(value: Profile) -> OpenPage:
        pages.append(open_page(browser, value, tmp_path / "page.html"))
        return pages[-1]

    yield open_one
    for opened in pages:
        opened.page.context.close()


@pytest.fixture(params=["gpt2", "resnet50"])
def opened(
    request: pytest.FixtureRequest, profiles: dict[str, Profile], open_profile: OpenFunction
) -> OpenPage:
    """A page that the test may change."""
    return open_profile(profiles[request.param])


@pytest.fixture(scope="module", params=["gpt2", "resnet50"])
def untouched(
    request: pytest.FixtureRequest,
    browser: Any,
    profiles: dict[str, Profile],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[OpenPage]:
    """A page that tests share, and therefore only read."""
    path = tmp_path_factory.mktemp("page") / "page.html"
    opened = open_page(browser, profiles[request.param], path)
    yield opened
    opened.page.context.close()


def alive_bytes(value: Profile, ms: float) -> list[int]:
    alive = [
        tensor.bytes
        for tensor in value.tensors
        if tensor.born_ms <= ms and (tensor.died_ms is None or ms < tensor.died_ms)
    ]
    return sorted(alive, reverse=True)


def check_alive_list(opened: OpenPage, total: int, expected: list[int]) -> None:
    """The list shows the largest, and adds up to the total of that moment."""
    shown = opened.numbers("#alive tbody tr")
    assert shown == expected[: len(shown)]
    assert len(shown) == min(12, len(expected))
    assert opened.number("#alive tr.total") == total
    assert sum(shown) + opened.number("#alive tr.remainder") == total
    assert opened.number("#moment") == total


def test_page_opens_offline_and_quietly(untouched: OpenPage) -> None:
    untouched.page.wait_for_timeout(200)

    assert untouched.problems == []
    assert [url.partition(":")[0] for url in untouched.requests] == ["file"]
    width = untouched.page.evaluate("document.documentElement.scrollWidth")
    assert width == untouched.page.evaluate("window.innerWidth")


def test_verdict_tells_the_peak(untouched: OpenPage) -> None:
    value = untouched.value

    assert untouched.number("#peak") == value.peak_bytes
    assert untouched.text("#peak") == format_bytes(value.peak_bytes)
    kind, amount = max(value.kinds.items(), key=lambda item: item[1])
    assert untouched.page.locator("#largest-kind").get_attribute("data-kind") == kind
    share = format_share(amount, value.peak_bytes)
    assert untouched.text("#largest-kind") == f"{share} of it is {Kind(kind).title}"
    assert untouched.number("#largest-line") == max(line.peak_bytes for line in value.lines)
    text = untouched.text("#verdict-text")
    assert f"in {value.peak_phase}, {format_ms(value.peak_ms)} into" in text
    assert value.peak_operation in text
    assert f"{Path(value.peak_file).name}:{value.peak_line}" in text
    assert untouched.number("[data-figure=stash]") == value.largest_stash_bytes
    assert untouched.number("[data-figure=opening]") == value.opening_bytes
    assert value.step_ms is not None
    assert untouched.number("[data-figure=step]", "data-ms") == value.step_ms
    assert untouched.text("[data-figure=step] .value") == format_ms(value.step_ms)
    assert value.resident_peak_bytes is not None
    assert untouched.number("[data-figure=resident]") == value.resident_peak_bytes


def test_books_balance_on_the_page(untouched: OpenPage) -> None:
    value = untouched.value
    rows = "#kinds-table tbody tr"

    names = untouched.column(rows, "data-kind")
    amounts = untouched.numbers(rows)
    assert dict(zip(names, amounts, strict=True)) == value.kinds
    assert sum(amounts) == untouched.number("#kinds-total") == value.peak_bytes
    assert "equals the measured peak" in untouched.text("#kinds-total")
    assert sum(untouched.numbers("#kinds-bar > div")) == value.peak_bytes
    widths = untouched.page.locator("#kinds-bar > div").evaluate_all(
        "(parts) => parts.map((part) => part.getBoundingClientRect().width)"
    )
    bar = untouched.page.locator("#kinds-bar").bounding_box()["width"]
    shares = [amount / value.peak_bytes for amount in amounts if amount]
    assert [width / bar for width in widths] == pytest.approx(shares, abs=0.002)
    shown = untouched.page.locator(f"{rows}[data-kind=stash] td").all_inner_texts()
    assert shown[2] == format_bytes(value.kinds["stash"])


def test_click_at_peak_lists_what_is_alive(opened: OpenPage) -> None:
    value = opened.value
    opened.page.mouse.click(*pixel_of(opened, 0.2 * value.peak_ms))
    assert opened.number("#moment", "data-ms") < value.peak_ms

    opened.page.mouse.click(*pixel_of(opened, value.peak_ms))

    assert opened.number("#moment", "data-ms") == value.peak_ms
    at_peak = sorted((t.bytes for t in value.tensors if t.at_peak), reverse=True)
    check_alive_list(opened, value.peak_bytes, at_peak)
    assert opened.page.locator("#moment .tag.peak").count() == 1


def test_click_elsewhere_adds_up_too(opened: OpenPage) -> None:
    value = opened.value
    end_ms = value.phases[-1].end_ms

    for share in (0.1, 0.4, 0.75):
        opened.page.mouse.click(*pixel_of(opened, share * end_ms))
        moment = value.timeline[int(opened.number("#moment", "data-index"))]
        assert opened.number("#moment", "data-ms") == moment.ms
        assert moment.ms <= share * end_ms + 0.01 * end_ms
        check_alive_list(opened, moment.total_bytes, alive_bytes(value, moment.ms))


def test_arrow_keys_move_the_moment(opened: OpenPage) -> None:
    value = opened.value
    slider = opened.page.locator("#moment-slider")
    slider.focus()

    slider.press("Home")
    slider.press("ArrowRight")
    slider.press("ArrowRight")
    slider.press("ArrowLeft")

    assert opened.number("#moment", "data-index") == 1
    check_alive_list(
        opened, value.timeline[1].total_bytes, alive_bytes(value, value.timeline[1].ms)
    )
    assert format_bytes(value.timeline[1].total_bytes) in str(
        slider.get_attribute("aria-valuetext")
    )
    slider.press("End")
    assert opened.number("#moment", "data-ms") == value.timeline[-1].ms
    opened.page.locator("#moment-peak").click()
    assert opened.number("#moment") == value.peak_bytes


def test_drag_zooms_and_button_resets(opened: OpenPage) -> None:
    end_ms = opened.value.phases[-1].end_ms
    x, y = pixel_of(opened, 0.3 * end_ms)
    opened.page.mouse.move(x, y)
    opened.page.mouse.down()
    opened.page.mouse.move(pixel_of(opened, 0.5 * end_ms)[0], y, steps=4)
    opened.page.mouse.up()

    slider = "#moment-slider"
    assert opened.number(slider, "min") == pytest.approx(0.3 * end_ms, rel=0.02)
    assert opened.number(slider, "max") == pytest.approx(0.5 * end_ms, rel=0.02)
    opened.page.locator("#zoom-reset").click()
    assert opened.number(slider, "min") == 0
    assert opened.number(slider, "max") == pytest.approx(end_ms)
    assert opened.problems == []


def test_treemap_switches_what_it_sizes_by(opened: OpenPage) -> None:
    modules = opened.value.modules
    expected = {
        "stash": sum(module.stash_bytes for module in modules),
        "ms": sum(module.forward_ms + module.backward_ms for module in modules),
        "peak": sum(module.peak_bytes for module in modules),
    }
    drawn = (
        "() => echarts.getInstanceByDom(document.getElementById('treemap-chart'))"
        ".getOption().series[0].data.reduce((total, tile) => total + tile.value, 0)"
    )

    for metric, total in expected.items():
        opened.page.locator(f"#treemap-metric input[value={metric}]").check()
        assert opened.page.locator("#treemap-chart").get_attribute("data-metric") == metric
        assert opened.number("#treemap-chart", "data-total") == pytest.approx(total)
        assert opened.page.evaluate(drawn) == pytest.approx(total)
    opened.page.locator("#modules-details summary").click()
    largest = opened.page.locator("#modules-table tbody tr").first
    assert float(largest.get_attribute("data-bytes")) == max(m.peak_bytes for m in modules)
    assert opened.problems == []


def test_source_shows_the_line_and_its_tensors(opened: OpenPage) -> None:
    value = opened.value
    line = max(value.lines, key=lambda use: use.stash_bytes)
    button = next(
        item
        for item in opened.page.locator("#source-files button").all()
        if item.get_attribute("data-file") == line.file
    )
    inside = [use.peak_bytes for use in value.lines if use.file == line.file]
    assert float(button.get_attribute("data-bytes")) == sum(inside)
    assert opened.numbers("#source-files button") == sorted(
        opened.numbers("#source-files button"), reverse=True
    )

    button.click()

    row = f"#source-code tr[data-line='{line.line}']"
    assert opened.number(row, "data-stash-bytes") == line.stash_bytes
    assert opened.number(row, "data-peak-bytes") == line.peak_bytes
    assert opened.number(row, "data-forward-ms") == line.forward_ms
    assert opened.number(row, "data-backward-ms") == line.backward_ms
    cells = opened.page.locator(f"{row} td").all_inner_texts()
    assert cells[0] == format_bytes(line.stash_bytes)
    code = opened.page.locator(f"{row} td.text").text_content()
    assert code == value.sources[line.file].split("\n")[line.line - 1]
    before = opened.page.locator("#source-code tr[data-line]").count()
    opened.page.locator("#source-code tr.gap button").first.click()
    assert opened.page.locator("#source-code tr[data-line]").count() > before

    opened.page.locator(f"{row} td.gutter button").click()

    own = [t.bytes for t in value.tensors if (t.file, t.line) == (line.file, line.line)]
    assert opened.number("#tensors-count", "data-count") == len(own)
    assert opened.number("#tensors-count") == sum(own)
    opened.page.locator("#tensors-only").click()
    assert opened.number("#tensors-count", "data-count") == len(value.tensors)


def test_tensors_sort_and_filter(opened: OpenPage) -> None:
    value = opened.value
    rows = "#tensors-table tbody tr"
    sizes = sorted((tensor.bytes for tensor in value.tensors), reverse=True)
    assert opened.numbers(rows) == sizes[:100]

    opened.page.locator("#tensors-table .more").click()
    assert opened.numbers(rows) == sizes[:200]
    opened.page.locator("#tensors-table [data-sort=bytes]").click()
    assert opened.numbers(rows) == sizes[::-1][:200]
    opened.page.locator("#tensors-table [data-sort=bytes]").click()

    opened.page.locator("#tensors-kind").select_option("stash")
    stash = sorted((t.bytes for t in value.tensors if t.kind == "stash"), reverse=True)
    assert opened.number("#tensors-count", "data-count") == len(stash)
    assert opened.numbers(rows) == stash[:100]
    assert set(opened.column(rows, "data-kind")) == {"stash"}

    opened.page.locator("#tensors-kind").select_option("")
    opened.page.locator("#tensors-at-peak").check()
    assert opened.number("#tensors-count") == sum(t.bytes for t in value.tensors if t.at_peak)
    opened.page.locator("#tensors-at-peak").uncheck()

    wanted = max((t for t in value.tensors if t.name), key=lambda tensor: tensor.bytes)
    opened.page.locator("#tensors-text").fill(wanted.name)
    matching = [t for t in value.tensors if wanted.name in t.name]
    assert opened.number("#tensors-count", "data-count") == len(matching)
    opened.page.locator("#tensors-text").fill("no such tensor anywhere")
    assert opened.page.locator(rows).count() == 0
    assert opened.page.locator("#tensors-table .empty").is_visible()


def test_reasons_and_lines_are_shown(untouched: OpenPage) -> None:
    kept = [t for t in untouched.value.tensors if t.kept_by and t.kind == "stash"]
    tensor = max(kept, key=lambda item: item.bytes)
    row = f"#tensors-table tr[data-id='{tensor.id}']"

    assert tensor.kept_by[0].why in untouched.text(f"{row} td.why")
    place = untouched.page.locator(row).get_attribute("data-place")
    assert place == f"{tensor.file}:{tensor.line}"


def test_findings_equal_the_profile(
    profiles: dict[str, Profile], open_profile: OpenFunction
) -> None:
    base = profiles["gpt2"]
    line, tensor = base.lines[0], base.tensors[0]
    made_up = Finding(
        name="made up",
        title="a made-up finding",
        bytes=12345,
        file=line.file,
        line=line.line,
        module=HOSTILE,
        detail="its detail",
        remedy="its remedy",
        tensors=(tensor.id,),
    )
    value = replace(base, findings=(*base.findings, made_up))

    opened = open_profile(value)

    cards = ".finding"
    assert opened.column(cards, "data-finding") == [found.name for found in value.findings]
    assert opened.numbers(cards) == [found.bytes for found in value.findings]
    for card, found in zip(opened.page.locator(cards).all(), value.findings, strict=True):
        text = card.inner_text().lower()
        for part in (found.title, found.detail, found.remedy, format_bytes(found.bytes)):
            assert part.lower() in text
        assert f"{format_share(found.bytes, value.peak_bytes)} of the peak" in text
    opened.page.get_by_role("button", name="Show its tensor").last.click()
    assert opened.column("#tensors-table tbody tr", "data-id") == [str(tensor.id)]


def test_operations_are_shown_longest_first(opened: OpenPage) -> None:
    value = opened.value
    times = sorted(
        (use.forward_ms + use.backward_ms + use.optimizer_ms for use in value.operations),
        reverse=True,
    )
    rows = "#operations-table tbody tr"
    assert opened.numbers(rows, "data-ms") == pytest.approx(times[:25])

    opened.page.locator("#operations-grouping input[value=name]").check()

    groups: dict[str, float] = {}
    for use in value.operations:
        spent = use.forward_ms + use.backward_ms + use.optimizer_ms
        groups[use.name] = groups.get(use.name, 0) + spent
    longest = max(groups, key=lambda name: groups[name])
    assert opened.column(rows, "data-operation")[0] == longest
    assert opened.numbers(rows, "data-ms")[0] == pytest.approx(groups[longest])


def test_limits_and_versions_are_shown(untouched: OpenPage) -> None:
    value = untouched.value

    assert untouched.column("#limits-list li", "data-limit") == [
        limit.name for limit in value.limits
    ]
    facts = untouched.text("#facts")
    for part in (value.torch_version, value.python_version, value.legroom_version, value.device):
        assert part in facts
    assert format_share(value.coverage.peak_share, 1) in facts
    assert format_ms(value.profiled_ms) in facts


def test_theme_toggle_changes_ground_not_palette(opened: OpenPage) -> None:
    colours = (
        "() => [getComputedStyle(document.body).backgroundColor, "
        "getComputedStyle(document.querySelector('#kinds-bar > div')).backgroundColor]"
    )
    light_ground, light_kind = opened.page.evaluate(colours)
    assert opened.page.locator("html").get_attribute("data-theme") == "light"

    opened.page.locator("#theme-toggle").click()

    assert opened.page.locator("html").get_attribute("data-theme") == "dark"
    dark_ground, dark_kind = opened.page.evaluate(colours)
    assert dark_ground != light_ground
    assert dark_kind == light_kind
    assert opened.problems == []


def test_page_stands_what_may_be_missing(
    profiles: dict[str, Profile], open_profile: OpenFunction
) -> None:
    value = replace(
        profiles["gpt2"],
        is_complete=False,
        step_ms=None,
        resident_peak_bytes=None,
        resident_before_bytes=None,
        peak_operation="",
        peak_file="",
        peak_module="",
        lines=(),
        modules=(),
        operations=(),
        findings=(),
        limits=(),
        sources={},
    )

    opened = open_profile(value)

    assert opened.problems == []
    assert opened.page.locator("#incomplete").is_visible()
    assert opened.page.locator("#no-lines").is_visible()
    assert opened.page.locator("#no-modules").is_visible()
    assert opened.page.locator("#no-findings").is_visible()
    assert opened.text("[data-figure=step] .value") == "–"
    assert opened.text("[data-figure=resident] .value") == "–"
    assert opened.number("#kinds-total") == value.peak_bytes


def test_lines_without_text_are_listed(
    profiles: dict[str, Profile], open_profile: OpenFunction
) -> None:
    value = replace(profiles["gpt2"], sources={})

    opened = open_profile(value)

    file = str(opened.page.locator("#source-code").get_attribute("data-file"))
    numbers = sorted(use.line for use in value.lines if use.file == file)
    assert opened.numbers("#source-code tr[data-line]", "data-line") == numbers
    assert opened.problems == []


def test_hostile_names_are_only_text(
    profiles: dict[str, Profile], open_profile: OpenFunction
) -> None:
    base = profiles["gpt2"]
    value = replace(
        base,
        command=HOSTILE,
        peak_operation=HOSTILE,
        peak_module=HOSTILE,
        lines=tuple(replace(use, file=HOSTILE, line=i) for i, use in enumerate(base.lines, 1)),
        modules=tuple(replace(use, path=HOSTILE, class_name=HOSTILE) for use in base.modules[:1]),
        operations=tuple(replace(use, name=HOSTILE) for use in base.operations),
        tensors=tuple(replace(use, name=HOSTILE, module=HOSTILE) for use in base.tensors),
        limits=(Limit(HOSTILE, HOSTILE, 5),),
        sources={HOSTILE: HOSTILE},
    )

    opened = open_profile(value)
    opened.page.locator("#treemap-chart").scroll_into_view_if_needed()
    box = opened.page.locator("#treemap-chart").bounding_box()
    opened.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 40)
    opened.page.wait_for_timeout(200)

    assert opened.page.evaluate("window.hacked") is None
    assert opened.problems == []
    assert opened.page.locator("img").count() == 0
    assert opened.text("#bar-command") == HOSTILE
    assert HOSTILE in opened.text("#limits-list")

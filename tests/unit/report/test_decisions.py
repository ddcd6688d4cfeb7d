import pytest

from legroom.report._decisions import group_decisions, merge_names, sum_by_way
from tests.made_up_plan import MIB, made_up_chosen


@pytest.mark.parametrize(
    ("names", "merged"),
    [
        (["encoder"], "encoder"),
        (["h.0.mlp", "h.1.mlp", "h.2.mlp"], "h.0–2.mlp"),
        (["h.0.mlp", "h.5.mlp"], "h.*.mlp"),
        (["a.0.b.3", "a.1.b.3"], "a.0–1.b.3"),
        (["conv2d", "conv2d"], "conv2d"),
        (["0", "1"], "0–1"),
    ],
)
def test_modules_that_differ_in_numbers_share_a_name(names, merged):
    assert merge_names(names) == merged


def test_groups_add_up_and_fall():
    decisions = made_up_chosen().decisions
    groups = group_decisions(decisions)
    assert sum(group.num_tensors for group in groups) == len(decisions)
    assert sum(group.num_bytes for group in groups) == sum(each.num_bytes for each in decisions)
    assert [group.released_bytes // MIB for group in groups] == [96, 36, 4, 0]
    first = groups[0]
    assert (first.module, first.line) == ("transformer.h.0–11.mlp.act", "models/gpt.py:40")
    assert (first.way, first.num_tensors, first.reason) == ("remake", 12, "remaking is cheap")
    assert first.added_ms == pytest.approx(6.0)


def test_ways_add_up():
    rows = {row.way: row for row in sum_by_way(made_up_chosen().decisions)}
    assert {way: row.num_tensors for way, row in rows.items()} == {
        "remake": 24, "hold": 12, "replay": 2,
    }  # fmt: skip
    assert rows["hold"].released_bytes == 0

from dataclasses import dataclass, field

import pytest

from legroom.errors import OutputError, UsageError
from legroom.saved import load_json, read_record, save_json, schema_of


@dataclass(frozen=True)
class Inner:
    name: str
    size: int | None


@dataclass(frozen=True)
class Outer:
    inner: Inner | None
    pairs: tuple[tuple[str, int], ...]
    many: tuple[Inner, ...] = ()
    kinds: dict[str, int] = field(default_factory=dict)


def read(data):
    return read_record(Outer, data, "outer", UsageError)


def test_values_come_back_with_their_types():
    data = {"inner": {"name": "a", "size": None}, "pairs": [["x", 1]], "kinds": {"k": 2}}
    assert read(data) == Outer(Inner("a", None), (("x", 1),), (), {"k": 2})
    assert read({"inner": None, "pairs": []}) == Outer(None, ())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "outer should be an object, got list"),
        ({"pairs": []}, "outer lacks the field 'inner'"),
        ({"inner": {"name": 1, "size": 1}, "pairs": []}, r"outer.inner.name should be of type str"),
        (
            {"inner": {"name": "a", "size": True}, "pairs": []},
            r"outer.inner.size should be of type",
        ),
        ({"inner": None, "pairs": 3}, r"outer.pairs should be a list, got int"),
        ({"inner": None, "pairs": [["x"]]}, r"outer.pairs\[0\] should have 2 members, got 1"),
        ({"inner": None, "pairs": [[1, 1]]}, r"outer.pairs\[0\]\[0\] should be of type str"),
    ],
)
def test_wrong_fields_are_named(data, message):
    with pytest.raises(UsageError, match=message):
        read(data)


def test_files_are_written_and_read(tmp_path):
    path = tmp_path / "x.json"
    save_json({"schema": "s/1"}, path)
    assert schema_of(load_json(path, UsageError, remedy="make x")) == "s/1"
    assert schema_of([]) is None
    path.write_text("{")
    with pytest.raises(UsageError, match=r"is not JSON .* was it cut off\? make it .* `make x`"):
        load_json(path, UsageError, remedy="make x")
    with pytest.raises(UsageError, match="cannot read"):
        load_json(tmp_path / "gone", UsageError, remedy="make x")
    with pytest.raises(OutputError, match="cannot write"):
        save_json({}, tmp_path / "gone" / "x.json")

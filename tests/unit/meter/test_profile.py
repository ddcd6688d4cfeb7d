"""The file format: what is written is read back, and what is not a profile is refused."""

import dataclasses
import json

import pytest
import torch
from torch import nn

import legroom
from legroom import Profile
from legroom.errors import OutputError, ProfileFormatError
from legroom.meter import SCHEMA


@pytest.fixture(scope="module")
def profiled():
    net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8))
    optimizer = torch.optim.Adam(net.parameters())

    def step():
        optimizer.zero_grad()
        net(torch.randn(64, 8)).pow(2).mean().backward()
        optimizer.step()

    return legroom.profile(step)


def test_a_saved_profile_reads_back_equal(profiled, tmp_path):
    path = tmp_path / "profile.json"
    profiled.save(path)
    assert Profile.load(path) == profiled


def test_the_promised_fields_are_at_the_top(profiled):
    data = profiled.to_json()
    promised = {
        "schema", "peak_bytes", "resident_peak_bytes", "kinds", "step_ms", "phases", "timeline",
        "lines", "modules", "operations", "tensors", "findings", "limits",
    }  # fmt: skip
    assert data["schema"] == SCHEMA == "legroom.profile/1"
    assert promised <= set(data)


def test_the_documentation_names_every_field(profiled, pytestconfig):
    text = (pytestconfig.rootpath / "docs" / "profile-format.md").read_text()
    missing = []
    pending = [Profile]
    while pending:
        cls = pending.pop()
        for field in dataclasses.fields(cls):
            if f"`{field.name}`" not in text:
                missing.append(f"{cls.__name__}.{field.name}")
            nested = {
                name: item
                for name, item in vars(__import__("legroom.meter._profile", fromlist=["x"])).items()
                if dataclasses.is_dataclass(item) and name in str(field.type)
            }
            pending.extend(item for item in nested.values() if item is not cls)
    assert missing == []


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ProfileFormatError, match=r"cannot read '.*gone\.json': No such file"):
        Profile.load(tmp_path / "gone.json")


@pytest.mark.parametrize("text", ["", "{", "not json at all", '{"schema": '])
def test_what_is_not_json_is_refused(tmp_path, text):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(ProfileFormatError, match=r"is not JSON .*was it cut off"):
        Profile.load(path)


def test_bytes_that_are_no_text_are_refused(tmp_path):
    path = tmp_path / "bad.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ProfileFormatError, match="is not JSON"):
        Profile.load(path)


@pytest.mark.parametrize("data", ["[]", "3", '{"schema": "legroom.plan/1"}', "{}", "null"])
def test_another_schema_is_refused(tmp_path, data):
    path = tmp_path / "other.json"
    path.write_text(data)
    with pytest.raises(ProfileFormatError, match=r"its schema is .*needed is 'legroom.profile/1'"):
        Profile.load(path)


def test_a_missing_field_is_named(profiled):
    data = profiled.to_json()
    del data["kinds"]
    with pytest.raises(ProfileFormatError, match="profile lacks the field 'kinds'"):
        Profile.from_json(data)


def test_a_wrong_type_is_named_with_its_place(profiled):
    data = json.loads(json.dumps(profiled.to_json()))
    data["tensors"][1]["bytes"] = "many"
    with pytest.raises(
        ProfileFormatError, match=r"profile\.tensors\[1\]\.bytes should be of type int, got str"
    ):
        Profile.from_json(data)
    data["tensors"] = {}
    with pytest.raises(ProfileFormatError, match=r"profile\.tensors should be a list, got dict"):
        Profile.from_json(data)


def test_an_unwritable_path_is_named(profiled, tmp_path):
    with pytest.raises(OutputError, match=r"cannot write '.*profile\.json': No such file"):
        profiled.save(tmp_path / "nowhere" / "profile.json")

"""What `legroom ways` prints of all ways, variants and presets, and of one."""

import io
import json

import pytest
from click.testing import CliRunner
from rich.console import Console

from legroom import variants, ways
from legroom.cli._ways import ways_command
from legroom.errors import UnknownNameError
from legroom.plan import presets
from legroom.report import facts_of, print_way, way_data, ways_data

NAMES = (*ways.names(), *variants.names(), *presets.names())


def text_of(name):
    console = Console(file=io.StringIO(), width=200)
    print_way(name, console)
    return console.file.getvalue()


def test_names_are_those_of_one_entry_each():
    assert len(set(NAMES)) == len(NAMES)
    data = ways_data()
    listed = [each["name"] for key in ("ways", "variants", "presets") for each in data[key]]
    assert listed == list(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_entry_says_all_there_is_to_know(name):
    facts = dict(facts_of(way_data(name)))
    wanted = {"when", "what it costs", "exactness", "used", "in Python", "in a terminal"}
    assert wanted | {"not with", "origin"} <= set(facts)
    for label in ("when", "not with"):
        assert facts[label].endswith(".")
        assert facts[label][0].isupper() or facts[label].startswith("`")
    text = " ".join(text_of(name).split())
    assert way_data(name)["summary"] in text
    assert all(" ".join(each.split()) in text for each in facts.values())


@pytest.mark.parametrize("name", presets.names())
def test_presets_name_ways_that_exist(name):
    preset = presets.get(name)
    assert preset.uses
    assert all(each in ways.names() for each in preset.uses)
    exact = [ways.get(each).exactness for each in preset.uses]
    assert all(preset.exactness().allows(each) for each in exact)


def test_executors_that_refuse_are_named():
    assert "Executor `inductor`." in text_of("sparse")
    assert "Executor `inductor`." in text_of("vdnn")
    assert "inductor" not in text_of("bits")


def test_a_rewrite_in_reserve_says_so():
    assert "in reserve" in text_of("chunked-mlp")
    assert "wherever it is found" in text_of("spelled-out")
    assert "on request only" in text_of("disk")


def test_an_unknown_name_suggests_a_near_one():
    with pytest.raises(UnknownNameError, match="Did you mean 'gist'"):
        way_data("gits")


def test_the_command_prints_several():
    result = CliRunner().invoke(ways_command, ["bits", "gist"])
    assert result.exit_code == 0
    assert "bits, a way" in result.output
    assert "gist, a preset" in result.output


def test_the_command_prints_data():
    result = CliRunner().invoke(ways_command, ["--json", "bits"])
    assert [each["name"] for each in json.loads(result.output)] == ["bits"]
    everything = json.loads(CliRunner().invoke(ways_command, ["--json"]).output)
    assert everything == json.loads(json.dumps(ways_data()))

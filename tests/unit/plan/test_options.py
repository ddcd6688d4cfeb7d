import pytest
import torch

from legroom import variants, ways
from legroom.errors import UsageError
from legroom.plan import PlanOptions, choose_ways


def test_the_defaults_are_in_order():
    options = PlanOptions()
    options.check()
    assert options.chosen_budget is None
    assert options.way_names is options.variant_names is None


def test_all_faults_are_reported_together():
    options = PlanOptions(
        budget="abc", ways=("remke",), exactness="close", time_limit_s=0, num_points=-1,
        preset="gust",
    )  # fmt: skip
    with pytest.raises(UsageError, match="6 options are wrong:") as caught:
        options.check()
    for part in (
        "budget 'abc' is not a size",
        "Did you mean 'remake'?",
        "exactness 'close' is unknown; write bitwise, rounding, lossy",
        "time limit 0 s leaves no time",
        "-1 points make no frontier",
        "unknown preset 'gust'",
    ):
        assert part in str(caught.value)


def test_one_fault_is_said_without_a_list():
    with pytest.raises(UsageError, match=r"^time limit nan s leaves no time"):
        PlanOptions(time_limit_s=float("nan")).check()


def test_names_are_split_into_ways_and_variants():
    names = (ways.names()[1], variants.names()[0])
    options = PlanOptions(ways=names)
    assert options.way_names == names[:1]
    assert options.variant_names == names[1:]


def test_with_and_without_choose():
    usual = (name for name in ways.names() if not ways.get(name).is_on_request)
    everything = (*usual, *variants.names())
    assert choose_ways() is None
    assert choose_ways(only=["remake"]) == ("remake",)
    left = choose_ways(without=["remake"], exactness="lossy")
    assert left == tuple(name for name in everything if name != "remake")
    options = PlanOptions(ways=choose_ways(without=["remake"]))
    assert {way.name for way in ways.select(options.way_names)} == {
        way.name for way in ways.select() if way.name != "remake"
    }


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"only": ["remkae"]}, r"unknown way 'remkae'; available: hold, .*Did you mean 'remake'\?"),
        ({"only": ["remake"], "without": ["remake"]}, "'remake' is asked for with and without"),
        ({"without": ["hold"]}, "'hold' cannot be left out"),
    ],
)
def test_impossible_choices_are_refused(choice, message):
    with pytest.raises(UsageError, match=message):
        choose_ways(**choice)


def test_a_way_that_is_not_exact_enough_is_refused():
    class Halved(ways.AbstractWay):
        name = "halved"
        exactness = ways.Exactness.LOSSY

    ways.register(Halved)
    try:
        with pytest.raises(UsageError, match="'halved' is lossy, but exactness is 'bitwise'"):
            choose_ways(only=["halved"])
        assert choose_ways(only=["halved"], exactness="lossy") == ("halved",)
    finally:
        ways.unregister("halved")


@pytest.mark.parametrize("word", ["free", "lowest"])
def test_a_bound_on_the_stash_goes_with_sizes_only(word):
    with pytest.raises(UsageError, match="is looked for without a bound on the stash"):
        PlanOptions(budget=word, stash="50%").check()
    PlanOptions(budget="50%", stash="50%").check()


@pytest.mark.parametrize("asked", [{"disk": True}, {"disk": "there"}, {"ways": ("disk",)}])
def test_the_disk_of_another_machine_is_not_known(asked):
    with pytest.raises(UsageError, match="whose disk is not known"):
        PlanOptions(device="RTX4090", **asked).check()


@pytest.mark.parametrize("asked", [{"host": True}, {"ways": ("host",)}])
def test_host_memory_of_a_described_device_is_its_link(asked):
    options = PlanOptions(device="RTX4090", **asked)
    options.check()
    assert options.moves == ("host",)
    assert "host" in options.way_names


def test_tiers_may_be_asked_for_together():
    options = PlanOptions(disk=True, host=True)
    assert options.moves == ("host", "disk")
    assert set(options.way_names) == {*(way.name for way in ways.select()), "host", "disk"}
    assert PlanOptions(ways=("remake",), host=True).way_names == ("remake", "host")
    assert PlanOptions(ways=("disk", "remake"), host=True).moves == ("host", "disk")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_host_memory_needs_an_accelerator():
    with pytest.raises(UsageError, match=r"for tensors of an accelerator, and there is no CUDA"):
        PlanOptions(host=True).check()


@pytest.mark.parametrize("disk", ["", " ", 3])
def test_a_disk_that_is_no_folder_is_refused(disk):
    with pytest.raises(UsageError, match=rf"disk {disk!r} is not a folder; name one"):
        PlanOptions(disk=disk).check()


def test_host_memory_has_no_folder():
    with pytest.raises(UsageError, match="host '/scratch' is not understood; write True or False"):
        PlanOptions(host="/scratch", device="RTX4090").check()

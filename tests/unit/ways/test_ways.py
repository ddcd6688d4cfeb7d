"""The registry of ways, and what each says of a tensor. Carrying them out is tested elsewhere."""

import inspect

import pytest

from legroom import ways
from legroom.capture import Kind, OperationInfo, Phase, TensorInfo
from legroom.errors import UnknownNameError, UsageError
from legroom.ways import Exactness, Hold, Remake, Replay, Saving

TENSOR = TensorInfo(0, "t0", 1 << 20, Kind.STASH, producer=0, is_planned=True)


def made_by(phase=Phase.FORWARD, **extra):
    return OperationInfo(0, "aten.sin.default", phase, writes=(0,), time_ms=3.0, **extra)


@pytest.mark.parametrize("name", ways.names())
def test_every_way_describes_itself(name):
    way = ways.get(name)
    assert way.name == name
    assert issubclass(way, ways.AbstractWay)
    assert not inspect.isabstract(way)
    assert isinstance(way.exactness, Exactness)
    for text in (way.summary, way.origin, way.costs):
        assert text
        assert not text.endswith(".")


@pytest.mark.parametrize("name", ways.names())
def test_estimates_are_pure_and_save_bytes(name):
    way = ways.get(name)
    for op in (made_by(), made_by(is_random=True), made_by(updates=(5,)), made_by(Phase.BACKWARD)):
        saving = way.estimate(TENSOR, op)
        assert saving == way.estimate(TENSOR, op)
        if saving is not None:
            assert 0 <= saving.held_bytes <= TENSOR.num_bytes
            assert saving.put_ms >= 0 <= saving.get_ms
            assert saving.keeps_whole == (saving.held_bytes == TENSOR.num_bytes)


def test_hold_keeps_the_tensor_whole():
    for op in (made_by(), made_by(is_random=True), made_by(Phase.BACKWARD)):
        assert Hold.estimate(TENSOR, op) == Saving(held_bytes=1 << 20, keeps_whole=True)


@pytest.mark.parametrize("phase", [Phase.FORWARD, Phase.LOSS])
def test_remake_runs_what_forward_ran(phase):
    assert Remake.estimate(TENSOR, made_by(phase)) == Saving(held_bytes=0, runs_producer=True)


@pytest.mark.parametrize(
    "op",
    [
        made_by(is_random=True),
        made_by(updates=(7,)),
        made_by(Phase.BACKWARD),
        made_by(Phase.OPTIMIZER),
        made_by(Phase.OTHER),
    ],
    ids=["random", "updates", "backward", "optimizer", "other"],
)
def test_remake_refuses_what_cannot_run_twice(op):
    assert Remake.estimate(TENSOR, op) is None


def test_replay_is_for_random_operations():
    saving = Replay.estimate(TENSOR, made_by(is_random=True))
    assert saving == Saving(held_bytes=5056, runs_producer=True)
    for op in (
        made_by(),
        made_by(Phase.BACKWARD, is_random=True),
        made_by(is_random=True, updates=(7,)),
    ):
        assert Replay.estimate(TENSOR, op) is None


def test_select_takes_all_that_are_exact():
    each_way = (ways.get(name) for name in ways.names())
    exact = [each for each in each_way if each.exactness is Exactness.BITWISE]
    assert ways.select() == tuple(each for each in exact if not each.is_on_request)
    assert ways.select(("disk",)) == (Hold, ways.Disk)
    assert ways.select(("remake",)) == (Hold, Remake)
    assert ways.select(()) == (Hold,)
    # In the order of the registry, whatever the order asked for.
    assert ways.select(("replay", "remake")) == (Hold, Remake, Replay)


def test_select_goes_by_exactness():
    @ways.register
    class Halved(ways.AbstractWay):
        name, summary, origin, costs = "halved", "half of the bits", "this test", "precision"
        exactness = Exactness.LOSSY

        @classmethod
        def estimate(cls, tensor, producer, costs=(), readers=()):
            return Saving(held_bytes=tensor.num_bytes // 2)

    try:
        assert Halved not in ways.select()
        assert Halved not in ways.select(exactness=Exactness.ROUNDING)
        assert Halved in ways.select(exactness=Exactness.LOSSY)
        with pytest.raises(UsageError, match=r"'halved' is lossy, but .* --exactness lossy"):
            ways.select(("halved",))
    finally:
        ways.unregister("halved")
    assert "halved" not in ways.names()


def test_exactness_is_ordered():
    order = [Exactness.BITWISE, Exactness.ROUNDING, Exactness.LOSSY]
    for rank, asked in enumerate(order):
        assert [each for each in order if asked.allows(each)] == order[: rank + 1]


def test_an_unknown_way_is_hinted_at():
    with pytest.raises(UnknownNameError, match=r"unknown way 'remak'; .* Did you mean 'remake'\?"):
        ways.select(("remak",))

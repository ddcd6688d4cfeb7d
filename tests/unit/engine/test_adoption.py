"""Which modules are fitted when a program calls them, and that nothing else is touched."""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from legroom.engine._adoption import Adoption
from legroom.engine._arguments import options_from
from legroom.engine._fit import Fitted
from legroom.engine._plain_calls import PlainCalls
from legroom.engine.graph import choose_executor


class Pretender:
    """Stands for a fitted module: notes that it was installed."""

    def __init__(self, module):
        self.module, self.is_installed, self.plan = module, False, None
        self.plain_calls = PlainCalls(print, is_refused=False)

    def install(self):
        self.is_installed = True

    def undo(self):
        self.is_installed = False

    def report(self):
        return "report"


@pytest.fixture
def adopt():
    original = nn.Module.__call__
    made = {}

    def run(program, *, leave=()):
        def fit(module, name):
            made[name] = Pretender(module)
            return made[name]

        adoption = Adoption(fit, leave=leave)
        with adoption.watching():
            program(adoption)
            run.left = dict(adoption.left)
        assert nn.Module.__call__ is original
        assert not any(each.is_installed for each in made.values())
        return {name: each.module for name, each in made.items()}

    return run


class Wrapper(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.loss = nn.MSELoss()

    def forward(self, value):
        return self.net(value)


def test_the_outermost_module_is_adopted(adopt):
    model = Wrapper()

    def program(adoption):
        for _ in range(2):
            model.loss(model(torch.ones(2, 4)), torch.ones(2, 4)).backward()

    assert adopt(program) == {"Wrapper": model}


def test_a_part_that_is_called_alone_has_its_path(adopt):
    model = Wrapper()
    assert adopt(lambda _: model.net(torch.ones(2, 4))) == {"net": model.net}


def test_what_does_not_train_is_left_alone(adopt):
    model = Wrapper()

    def program(adoption):
        model.frozen(torch.ones(2, 4))
        model.loss(torch.ones(2), torch.ones(2))
        with torch.no_grad():
            model(torch.ones(2, 4))

    assert adopt(program) == {}


def test_frozen_modules_with_gradients_through_them_are_adopted(adopt):
    model = Wrapper()
    data = torch.ones(2, 4, requires_grad=True)
    assert list(adopt(lambda _: model.frozen(data)).values()) == [model.frozen]


def test_data_parallel_is_looked_through(adopt):
    model = nn.DataParallel(Wrapper())
    assert list(adopt(lambda _: model(torch.ones(2, 4))).values()) == [model.module]


def test_two_of_a_class_have_two_names(adopt):
    one, other = nn.Linear(4, 4), nn.Linear(4, 4)
    found = adopt(lambda _: other(one(torch.ones(2, 4))))
    assert found == {"Linear": one, "Linear_1": other}


@pytest.mark.parametrize("name", ["Wrapper", "net"])
def test_modules_can_be_left_by_class_and_path(adopt, name):
    model = Wrapper()

    def program(adoption):
        model.net(torch.ones(2, 4)) if name == "net" else model(torch.ones(2, 4))

    assert adopt(program, leave=(name,)) == {}
    assert adopt.left == {(name, "left as it is: --leave"): 1}


def test_checkpointed_calls_are_listed(adopt):
    model = Wrapper()
    data = torch.ones(2, 4, requires_grad=True)

    def program(adoption):
        checkpoint(model, data, use_reentrant=False).sum().backward()

    assert adopt(program) == {}
    assert "Wrapper" in {name for name, _ in adopt.left}


def test_calls_are_looked_at_only_while_open(adopt):
    one, other, third = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def program(adoption):
        one(torch.ones(2, 4))
        adoption.close()
        other(torch.ones(2, 4))
        adoption.open()
        third(torch.ones(2, 4))

    assert adopt(program) == {"Linear": one, "Linear_1": third}


def test_inside_a_call_pytorch_is_itself(adopt):
    original = nn.Module.__call__

    class Curious(nn.Linear):
        def forward(self, value):
            assert nn.Module.__call__ is original
            return super().forward(value)

    model = Curious(4, 4)

    def program(adoption):
        model(torch.ones(2, 4))
        assert nn.Module.__call__ is not original
        with pytest.raises(RuntimeError):
            model(torch.ones(2, 5))
        assert nn.Module.__call__ is not original

    adopt(program)


def test_closed_adoption_lets_models_die():
    adoption = Adoption(lambda module, name: Pretender(module))
    model = nn.Linear(4, 4)
    with adoption.watching():
        model(torch.ones(2, 4))
        adoption.close()
        gone = weakref.ref(model)
        del model
        gc.collect()
        assert gone() is None
        assert adoption.adopted[0].report == "report"


def test_the_whole_takes_the_place_of_its_part():
    def fit(module, name):
        options = options_from(
            budget="100%",
            activations=None,
            exactness="bitwise",
            ways=(),
            without=(),
            time_limit_s=5.0,
        )
        return Fitted(module, options, choose_executor("eager", "bitwise"))

    model, value = Wrapper(), torch.ones(2, 4)
    adoption = Adoption(fit)
    with adoption.watching():
        model.net(value).sum().backward()
        assert "_compiled_call_impl" in vars(model.net)
        model(value).sum().backward()
        assert "_compiled_call_impl" not in vars(model.net)
        model.net[0](value).sum().backward()
        assert dict(adoption.left) == {
            ("net.0", "called alone, although part of what is planned"): 1
        }
    assert [each.name for each in adoption.adopted] == ["net", "Wrapper"]
    assert "_compiled_call_impl" not in vars(model)

import pytest
import torch
from torch import nn

from legroom.capture import AbstractTrainingObserver, StepFinder


def count_boundaries(loop, **kwargs):
    boundaries = []
    finder = StepFinder(lambda: boundaries.append(1), **kwargs)
    with finder.watching():
        loop(boundaries)
    return len(boundaries), finder


def test_a_step_ends_with_the_optimizer():
    def loop(_):
        net = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(3):
            net(torch.randn(1, 2)).sum().backward()
            optimizer.step()

    count, finder = count_boundaries(loop)
    assert (count, finder.num_backwards, finder.num_optimizer_steps) == (3, 3, 3)


def test_accumulation_is_one_step():
    def loop(_):
        net = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(2):
            for _ in range(4):
                net(torch.randn(1, 2)).sum().backward()
            optimizer.step()

    count, finder = count_boundaries(loop)
    assert (count, finder.num_backwards) == (2, 8)


def test_the_rarest_optimizer_closes_the_step():
    def loop(seen):
        critic, generator = nn.Linear(2, 2), nn.Linear(2, 2)
        fast = torch.optim.SGD(critic.parameters(), lr=0.1)
        slow = torch.optim.SGD(generator.parameters(), lr=0.1)
        for round_number in range(1, 4):
            for _ in range(5):
                critic(torch.randn(1, 2)).sum().backward()
                fast.step()
            generator(torch.randn(1, 2)).sum().backward()
            slow.step()
            assert len(seen) == round_number

    count, _ = count_boundaries(loop)
    assert count == 3


def test_an_optimizer_that_never_steps_is_not_waited_for_for_ever():
    def loop(_):
        net = nn.Linear(2, 2)
        unused = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
        used = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(12):
            net(torch.randn(1, 2)).sum().backward()
            used.step()
        del unused

    count, _ = count_boundaries(loop)
    assert count == 3


def test_without_an_optimizer_backward_ends_the_step():
    def loop(_):
        weight = torch.randn(2, requires_grad=True)
        for _ in range(3):
            weight.sum().backward()
            torch.autograd.backward((weight * 2).sum())

    count, finder = count_boundaries(loop)
    assert (count, finder.num_optimizers) == (6, 0)


def test_gradients_of_a_penalty_do_not_end_the_step():
    def loop(_):
        weight = torch.randn(2, requires_grad=True)
        (gradient,) = torch.autograd.grad((weight**2).sum(), weight, create_graph=True)
        gradient.sum().backward()

    count, _ = count_boundaries(loop)
    assert count == 1


def test_closures_are_inside_their_step():
    def loop(_):
        net = nn.Linear(2, 2)
        optimizer = torch.optim.LBFGS(net.parameters(), max_iter=2)

        def closure():
            optimizer.zero_grad()
            loss = net(torch.ones(1, 2)).pow(2).sum()
            loss.backward()
            return loss

        optimizer.step(closure)

    count, _ = count_boundaries(loop)
    assert count == 1


def test_the_start_is_told_once_before_the_first_step():
    order = []

    def loop(_):
        order.append("model")
        net = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
        order.append("training")
        net(torch.randn(1, 2)).sum().backward()
        optimizer.step()

    count_boundaries(loop, on_start=lambda: order.append("start"))
    assert order == ["model", "start", "training"]


def test_the_observer_hears_backward_and_update():
    heard = []

    class Listener(AbstractTrainingObserver):
        def optimizer_starts(self, optimizer):
            heard.append("starts")

        def optimizer_ends(self, optimizer):
            heard.append("ends")

    def loop(_):
        net = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        net(torch.randn(1, 2)).sum().backward()
        optimizer.step()

    finder = StepFinder(lambda: heard.append("boundary"))
    finder.observer = Listener()
    with finder.watching():
        loop(None)
    assert heard == ["starts", "ends", "boundary"]


def hooks_of_torch():
    from torch.optim import optimizer

    return (
        len(optimizer._global_optimizer_pre_hooks),
        len(optimizer._global_optimizer_post_hooks),
        torch.optim.Optimizer.__init__,
        torch.autograd._engine_run_backward,
        torch.Tensor.backward,
        torch.autograd.backward,
    )


def test_nothing_is_left_behind():
    before = hooks_of_torch()
    count_boundaries(lambda _: None)
    assert hooks_of_torch() == before


def test_a_retired_finder_leaves_with_the_next_backward():
    before = hooks_of_torch()
    boundaries = []
    finder = StepFinder(lambda: (boundaries.append(1), finder.retire()))
    net = nn.Linear(2, 2)
    with finder.watching():
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(3):
            net(torch.randn(1, 2)).sum().backward()
            optimizer.step()
        assert hooks_of_torch() == before
    assert len(boundaries) == 1


def test_an_error_in_the_loop_takes_the_hooks_off():
    before = hooks_of_torch()
    with pytest.raises(KeyError), StepFinder(lambda: None).watching():
        raise KeyError
    assert hooks_of_torch() == before


def test_a_paused_finder_hears_nothing():
    net = nn.Linear(2, 2)
    ended, made = [], []
    finder = StepFinder(lambda: ended.append(True))
    finder.observer.optimizer_made = made.append

    def step(optimizer):
        net(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    with finder.watching():
        optimizer = torch.optim.SGD(net.parameters())
        with finder.paused():
            other = torch.optim.SGD(net.parameters())
            step(optimizer)
            step(other)
        assert (ended, finder.num_backwards, finder.num_optimizer_steps) == ([], 0, 0)
        step(optimizer)
    assert ended == [True]
    assert made == [optimizer]

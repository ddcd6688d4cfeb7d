"""Steps are named as whoever wrote the loop counts them."""

import pytest
import torch
from torch import nn

from legroom.capture import StepFinder


class Stop(Exception):
    pass


def moment_of(loop):
    """When it failed."""
    finder = StepFinder(lambda: None)
    with finder.watching():
        try:
            loop()
        except Stop as error:
            return finder.steps.moment_of(error)
    raise AssertionError("the loop did not fail")


def fail(number, at):
    if number == at:
        raise Stop


def train(*, before=0, inside=0, after=0):
    net = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for number in range(1, 5):
        fail(number, before)
        loss = net(torch.randn(1, 2)).sum()
        fail(number, inside)
        loss.backward()
        optimizer.step()
        fail(number, after)


@pytest.mark.parametrize(
    ("failing", "moment"),
    [
        ({"before": 1}, "in step 1"),
        ({"inside": 3}, "in step 3"),
        ({"after": 3}, "after step 3"),
        ({"before": 4}, "in step 4"),
    ],
)
def test_the_rest_of_a_loop_belongs_to_its_step(failing, moment):
    assert moment_of(lambda: train(**failing)) == moment


def test_a_step_may_be_a_function():
    def step(net, optimizer, number, inside):
        fail(number, inside)
        net(torch.randn(1, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    def loop(inside=0, after=0):
        net = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for number in range(1, 5):
            step(net, optimizer, number, inside)
            fail(number, after)

    assert moment_of(lambda: loop(inside=2)) == "in step 2"
    assert moment_of(lambda: loop(after=2)) == "after step 2"


def test_one_line_is_told_apart():
    def loop(early, late):
        net = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for n in range(1, 5):
            loss = net(torch.randn(1, 2)).sum()
            _ = fail(n, early), loss.backward(), optimizer.step(), fail(n, late)

    assert moment_of(lambda: loop(3, 0)) == "in step 3"
    assert moment_of(lambda: loop(0, 3)) == "after step 3"


def test_steps_without_an_optimizer_are_counted():
    weight = nn.Parameter(torch.ones(2))

    def loop():
        for number in range(1, 5):
            weight.square().sum().backward()
            fail(number, 2)

    assert moment_of(loop) == "after step 2"


def test_a_handler_is_where_its_error_came_from():
    def loop(inside=0, after=0):
        net = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for number in range(1, 5):
            try:
                fail(number, inside)
                net(torch.randn(1, 2)).sum().backward()
                optimizer.step()
                fail(number, after)
            except Stop as error:
                raise Stop("training failed") from error

    assert moment_of(lambda: loop(inside=3)) == "in step 3"
    assert moment_of(lambda: loop(after=3)) == "after step 3"

"""Processes that a program starts: counted by what they run, and told of."""

import multiprocessing

import pytest
import torch

from legroom.capture._children import Children


def work():
    """What a child runs."""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_children_are_counted_by_what_they_run(method):
    children = Children()
    start = multiprocessing.process.BaseProcess.start
    with children.noticed():
        process = multiprocessing.get_context(method).Process(target=work)
        process.start()
    process.join()
    assert multiprocessing.process.BaseProcess.start is start
    counts = {"fork": children.forked, "spawn": children.started}
    assert counts.pop(method) == {"work": 1}
    assert not any(counts.values())


def test_workers_of_a_loader_do_not_count():
    children = Children()
    with children.noticed():
        assert len(list(torch.utils.data.DataLoader(range(4), num_workers=1))) == 4
    assert children.explanation("train.py", "run", without="has no budget") is None


def test_explanation_says_what_to_do():
    children = Children()
    children.started["worker"] = 2
    text = children.explanation("train.py", "run", without="has no budget")
    assert "started 2 processes to run worker" in text
    assert "what they train has no budget" in text
    assert "torchrun --nproc-per-node 2 -m legroom run … train.py" in text
    text = children.explanation("train.py", "plan", without="is not planned")
    assert "try: a script that calls worker in its own process" in text


def test_forked_children_have_what_their_parent_had():
    children = Children()
    children.forked["worker"] = 1
    text = children.explanation("train.py", "run", without="has no budget")
    assert "started a process to run worker; in each of them the whole budget holds" in text
    assert "does not follow" in children.explanation("train.py", "plan", without="is not planned")

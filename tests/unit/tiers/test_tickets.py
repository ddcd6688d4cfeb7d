import gc
import weakref

import pytest
import torch

from legroom.errors import TierError
from legroom.tiers._ticket import Claim, claim_of, new_ticket, number_of


@pytest.fixture
def gone():
    return []


@pytest.fixture
def ticket(gone):
    return [new_ticket(Claim(gone.append))]


def test_a_ticket_is_one_integer(ticket):
    assert ticket[0].dtype == torch.int64
    assert ticket[0].shape == (1,)
    assert number_of(ticket[0]) > 0


def test_every_view_keeps_the_slot(ticket, gone):
    views = [ticket[0].detach(), ticket[0].view(1, 1), ticket[0].as_strided((1,), (1,))]
    number = number_of(ticket.pop())
    while views:
        assert gone == []
        views.pop()
    assert gone == [number]


def test_several_tickets_keep_one_slot(gone):
    claim = Claim(gone.append)
    first, second = new_ticket(claim), new_ticket(claim)
    assert first.untyped_storage().data_ptr() != second.untyped_storage().data_ptr()
    number = claim.number
    del claim, first
    assert gone == []
    del second
    assert gone == [number]


class Saving(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, tickets):
        ctx.save_for_backward(tickets.pop())
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        assert number_of(ctx.saved_tensors[0]) > 0
        return grad, None


def test_autograd_keeps_a_saved_ticket_until_backward(ticket, gone):
    x = torch.ones(2, requires_grad=True)
    y = Saving.apply(x, ticket)
    assert gone == []
    y.sum().backward()
    assert len(gone) == 1


def test_retained_graphs_keep_their_ticket(ticket, gone):
    y = Saving.apply(torch.ones(2, requires_grad=True), ticket)
    y.sum().backward(retain_graph=True)
    assert gone == []
    y.sum().backward()
    assert len(gone) == 1


def test_a_dropped_graph_releases_its_ticket(ticket, gone):
    y = Saving.apply(torch.ones(2, requires_grad=True), ticket)
    del y
    gc.collect()
    assert len(gone) == 1


def test_a_copy_is_no_ticket(gone):
    claim = Claim(gone.append)
    reference = weakref.ref(claim)
    copy = new_ticket(claim).clone()
    assert number_of(copy) == claim.number
    del claim
    assert len(gone) == 1
    with pytest.raises(TierError, match="was copied, and the last real one is gone"):
        claim_of(reference, tier="disk")

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from legroom.errors import UsageError
from legroom.tiers import why_not_plain
from legroom.tiers._layout import Layout, is_dense, layout_of, relaid


@given(some.lists(some.integers(1, 4), max_size=4), some.randoms())
def test_any_order_of_dimensions_is_dense(size, dice):
    order = list(range(len(size)))
    dice.shuffle(order)
    assert is_dense(*_size_and_stride(torch.empty(size).permute(order)))


@given(some.lists(some.integers(1, 3), min_size=1, max_size=3), some.data())
def test_dense_means_every_element_once(size, data):
    stride = data.draw(some.lists(some.integers(0, 9), min_size=len(size), max_size=len(size)))
    indices = torch.cartesian_prod(*(torch.arange(n) for n in size)).reshape(-1, len(size))
    places = sorted((indices * torch.tensor(stride)).sum(-1).tolist())
    assert is_dense(size, stride) == (places == list(range(len(places))))


def _size_and_stride(tensor):
    return tuple(tensor.shape), tensor.stride()


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        (torch.ones(4, 4)[:, :2], "strides are"),
        (torch.ones(1).expand(4), "strides are"),
        (torch.ones(2, dtype=torch.complex64).conj(), "conjugated"),
        (torch.ones(2, 2).to_sparse(), "layout"),
    ],
)
def test_what_is_more_than_bytes_is_refused(tensor, reason):
    assert reason in why_not_plain(tensor)
    with pytest.raises(UsageError, match="cannot be put on a tier"):
        layout_of(tensor)


def test_other_layouts_share_the_memory_and_are_no_view():
    flat = torch.arange(6.0)
    other = relaid(flat, Layout((2, 3), (1, 2), torch.float32))
    assert other.data_ptr() == flat.data_ptr()
    assert other._base is None
    assert other.stride() == (1, 2)
    assert relaid(flat, Layout((6,), (1,), torch.float32)) is flat

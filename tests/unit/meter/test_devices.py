import re

import pytest
import torch

from legroom.capture import signature_of
from legroom.errors import UsageError
from legroom.meter import (
    device_names,
    modelled_host_speed,
    modelled_times,
    parse_device,
    roofline_ms,
)

GIB = 1024**3
aten = torch.ops.aten


@pytest.mark.parametrize("name", device_names())
def test_every_named_device_is_complete(name):
    device = parse_device(name.lower())
    assert device.name == name
    assert device.memory_bytes >= 16 * GIB
    assert device.half_flops_per_s > device.flops_per_s > 1e12
    assert device.bytes_per_s > device.host_bytes_per_s > 1e9


def test_names_are_sorted():
    assert list(device_names()) == sorted(device_names())


def test_case_and_dashes_do_not_matter():
    assert parse_device("a100 40gb") == parse_device("A100-40GB")


def test_memory_alone_is_enough():
    device = parse_device("24GiB")
    assert device.memory_bytes == 24 * GIB
    assert device.flops_per_s > 0
    assert device.host_bytes_per_s > 0


def test_figures_are_read_in_any_order():
    device = parse_device("24GiB, 100 GB/s to host, 20 tflops,  900 GB/s, 80 TFLOPS in 16 bits")
    assert device.host_bytes_per_s == 100e9
    assert device.flops_per_s == 20e12
    assert device.half_flops_per_s == 80e12
    assert device.bytes_per_s == 900e9


def test_half_precision_follows_the_given_figure():
    assert parse_device("8GiB, 10 TFLOPS").half_flops_per_s == 20e12


def test_a_named_device_can_be_changed():
    device = parse_device("L4, 12 GB/s to host")
    assert device.host_bytes_per_s == 12e9
    assert device.memory_bytes == parse_device("L4").memory_bytes
    assert device.name == "L4, 12 GB/s to host"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"'' is neither memory nor a known device"),
        ("A100-60GB", r"neither memory nor a known device \(A100-40GB, .*Did you mean 'A100-"),
        ("RTX 4O90", r"Did you mean 'RTX4090'\?"),
        ("toaster", r"'toaster' is neither memory nor a known device"),
        ("24", r"'24' is 24 bytes of memory; is a unit missing\?"),
        ("24 apples", r"'24 apples' is not a size"),
        ("24GiB, fast", r"'fast' is not a figure.*\n  write memory first, then any of 'N TFLOPS'"),
        ("24GiB, 0 GB/s", r"'0 GB/s' is not a figure"),
        ("24GiB,", r"'' is not a figure"),
        ("24GiB, 10 TFLOPS, 20 TFLOPS", r"'20 TFLOPS' comes after another figure of the same kind"),
    ],
)
def test_what_is_malformed_says_what_is_allowed(text, message):
    with pytest.raises(UsageError, match=message) as caught:
        parse_device(text)
    assert "for example '24GiB" in str(caught.value)


def test_all_faults_are_named_together():
    with pytest.raises(UsageError) as caught:
        parse_device("toaster, fast, loud")
    assert re.search(r"'toaster'.*'fast'.*'loud'", str(caught.value))


def test_the_longer_of_both_counts():
    device = parse_device("24GiB, 10 TFLOPS, 100 GB/s")
    assert roofline_ms(device, 10e12, 1, "float32") == pytest.approx(1000 + device.launch_ms)
    assert roofline_ms(device, 1, 100e9, "float32") == pytest.approx(1000 + device.launch_ms)
    assert roofline_ms(device, 10e12, 1, "bfloat16") == pytest.approx(500 + device.launch_ms)
    assert roofline_ms(device, 0, 0, "float32") == device.launch_ms


def test_times_for_an_absent_device_are_modelled():
    a = torch.empty(2048, 2048, device="meta")
    matmul = signature_of(aten.mm.default, (a, a))
    relu = signature_of(aten.relu.default, (a,))
    device = parse_device("A100-40GB")
    times = modelled_times([matmul, relu, matmul], device)
    assert list(times) == [matmul, relu]
    assert not any(time.is_measured for time in times.values())
    assert times[matmul].ms == roofline_ms(device, 2 * 2048**3, 3 * 4 * 2048**2, "float32")
    assert times[relu].ms == roofline_ms(device, 0, 2 * 4 * 2048**2, "float32")


def test_the_link_says_how_fast_host_memory_is():
    speed = modelled_host_speed(parse_device("24GiB, 10 GB/s to host"))
    assert speed.put_ms(10_000_000) == pytest.approx(1.0, abs=0.01)
    assert speed.get_ms(10_000_000) == speed.put_ms(10_000_000, computing=False)
    assert 0 < speed.put_ms(0) < 0.1
    assert speed.compute_slowdown == 1.0

"""What `legroom run` and `legroom verify` print, from values that nobody measured."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from legroom.engine import Difference, ErrorFigures, RunReport, Verification
from legroom.report import print_run_measured, print_run_plan, print_verification

MIB = 2**20
RUN = RunReport(
    budget_bytes=300 * MIB,
    plain_peak_bytes=600 * MIB,
    predicted_peak_bytes=299 * MIB,
    measured_peak_bytes=298 * MIB,
    resident_peak_bytes=250 * MIB,
    step_ms=412.0,
    planning_s=4.2,
    replans=1,
    ways={"hold": {"tensors": 20, "bytes": 80 * MIB}, "remake": {"tensors": 9, "bytes": 90 * MIB}},
    not_planned=tuple((f"call {i}", "it is [odd]") for i in range(7)),
    added_ms=24.5,
    preset="milp",
    model="GPT",
)
RESULT = Verification(
    target="python train.py",
    equal=True,
    exactness="bitwise",
    tolerance=0.0,
    steps=3,
    compared={"losses": 3, "gradients": 30},
    run=RUN,
)
WRONG = Difference(
    step=2,
    kind="gradients",
    name="h.0.mlp.weight",
    module="h.0.mlp",
    line="model.py:12",
    way="remake",
    largest_difference=0.25,
    relative_error=1e-3,
)


def text_of(show, value):
    file = io.StringIO()
    show(value, Console(file=file, width=200))
    return file.getvalue()


def test_the_plan_is_a_paragraph_and_a_few_rows():
    text = text_of(print_run_plan, RUN)
    assert "GPT: the plain step peaks at 600.0 MiB; planned, at 299.0 MiB, 50 % of it." in text
    assert "budget 300.0 MiB · predicted peak 299.0 MiB · added +24.5 ms per step" in text
    assert text.index("remake") < text.index("hold")
    assert "call 4: it is [odd]" in text
    assert "… and 2 more" in text


@pytest.mark.parametrize(
    ("measured", "said"), [(298, "(−0.33 %)"), (299, "(exactly)"), (301, "exceeded")]
)
def test_measured_stands_beside_predicted(measured, said):
    text = text_of(print_run_measured, replace(RUN, measured_peak_bytes=measured * MIB))
    assert f"tensors peaked at {measured}.0 MiB by the allocator's count · predicted 299.0" in text
    assert "budget 300.0 MiB for tensors: " in text
    assert "the process grew by 250.0 MiB, freed memory that it keeps included" in text
    assert said in text
    assert "step 412 ms · planned again" in text


def test_a_share_stands_beside_the_bytes_that_it_means():
    text = text_of(print_run_plan, replace(RUN, budget="50 % of the peak"))
    assert "budget 300.0 MiB (50 % of the peak) · predicted peak" in text


def test_equal_says_how_much_was_compared():
    text = text_of(print_verification, RESULT)
    assert "Equal bit for bit: 33 tensors over 3 steps, plain and fitted." in text
    assert "budget 300.0 MiB, 50 % of the plain step's peak" in text
    assert "9 tensors remake" in text


def test_a_plan_that_gives_nothing_back_says_so():
    only_hold = replace(RUN, ways={"hold": RUN.ways["hold"]}, budget_bytes=700 * MIB)
    text = text_of(print_verification, replace(RESULT, run=only_hold))
    assert "budget 700.0 MiB, above the plain step's peak" in text
    assert "nothing but hold: a lower budget would test more" in text


def test_different_names_the_first():
    result = replace(
        RESULT,
        equal=False,
        different=(WRONG,) * 12,
        errors={"gradients": ErrorFigures(0.25, None)},
        notes=("a smaller step was compared, with batch-size 2",),
    )
    text = text_of(print_verification, result)
    assert (
        "The first is the gradient of h.0.mlp.weight in step 2, module h.0.mlp (model.py:12), "
        "way remake." in " ".join(text.split())
    )
    assert "a smaller step was compared, with batch-size 2" in text
    assert "… and 2 more" in text
    assert "0.25" in text


def test_within_a_tolerance_says_which():
    result = replace(RESULT, exactness="rounding", tolerance=1e-3)
    assert "Equal within a relative error of 0.001" in text_of(print_verification, result)

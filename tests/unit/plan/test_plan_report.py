import json
from dataclasses import replace

import pytest

from legroom.errors import OutputError, PlanFormatError
from legroom.plan import FrontierPoint, Plan, PlanReport, PresetPoint
from legroom.plan._report import with_all_candidates
from tests.made_up_plan import made_up_report, with_sweep

PROMISED = (
    "schema", "plain_peak_bytes", "floor_peak_bytes", "frontier", "budget_bytes",
    "predicted_peak_bytes", "added_ms", "bound_ms", "decisions",
)  # fmt: skip


def test_promised_fields_are_at_the_top():
    data = made_up_report().to_dict()
    assert data["schema"] == "legroom.plan/1"
    assert [name for name in PROMISED if name not in data] == []
    point = {"budget_bytes", "predicted_peak_bytes", "added_ms", "gap", "preset"}
    assert all(point <= set(each) for each in data["frontier"])


@pytest.mark.parametrize("report", [
    made_up_report(), with_sweep(made_up_report()), replace(made_up_report(), chosen=None)
], ids=["chosen", "swept", "frontier only"])  # fmt: skip
def test_saved_reports_come_back_equal(report, tmp_path):
    report.save(tmp_path / "plan.json")
    assert PlanReport.load(tmp_path / "plan.json") == report


def test_times_of_plan_and_report_stay_apart():
    data = made_up_report().to_dict()
    assert (data["solve_s"], data["plan_solve_s"]) == (11.0, 4.2)
    assert data["exactness"] == data["plan_exactness"] == "bitwise"


def test_without_a_budget_there_is_none():
    data = replace(made_up_report(), chosen=None).to_dict()
    assert data["budget_bytes"] is None
    assert "decisions" not in data


def test_a_file_of_something_else_is_refused(tmp_path):
    path = tmp_path / "other.json"
    path.write_text('{"schema": "legroom.profile/1"}')
    with pytest.raises(PlanFormatError, match=r"not a plan .* schema is 'legroom.profile/1'"):
        PlanReport.load(path)
    path.write_text('{"schema": "legroom.pl')
    with pytest.raises(PlanFormatError, match=r"is not JSON .* `legroom plan --json FILE"):
        PlanReport.load(path)
    with pytest.raises(PlanFormatError, match=r"cannot read .*gone.json"):
        PlanReport.load(tmp_path / "gone.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data.pop("state_bytes"), "plan lacks the field 'state_bytes'"),
        (lambda data: data.pop("added_ms"), r"plan.chosen lacks the field 'added_ms'"),
        (lambda data: data["frontier"][1].update(gap="1"), r"plan.frontier\[1\].gap should be of"),
        (lambda data: data.update(decisions={}), "plan.chosen.decisions should be a list, got"),
        (lambda data: data["not_planned"][0].pop(), r"not_planned\[0\] should have 3 members"),
    ],
)
def test_wrong_fields_are_named(change, message):
    data = json.loads(json.dumps(made_up_report().to_dict()))
    change(data)
    with pytest.raises(PlanFormatError, match=message):
        PlanReport.from_dict(data)


def test_an_unwritable_file_is_an_output_error(tmp_path):
    with pytest.raises(OutputError, match="cannot write"):
        made_up_report().save(tmp_path / "missing" / "plan.json")


def test_no_point_of_the_frontier_is_beaten_by_what_was_simulated():
    points = [
        FrontierPoint(100, 100, 0.0, 0.0, 0.0, "plain"),
        FrontierPoint(50, 48, 9.0, 2.0, 0.07, "milp"),
    ]
    chosen = Plan(70, 69, 3.0, 1.0, 0.02, "sqrt")
    recipe = PresetPoint("min-cut", "", 47, 5.0)
    found = with_all_candidates(points, (recipe, chosen), step_ms=98.0)
    assert [(p.budget_bytes, p.predicted_peak_bytes, p.added_ms, p.preset) for p in found] == [
        (100, 100, 0.0, "plain"), (70, 69, 3.0, "sqrt"), (50, 47, 5.0, "min-cut"),
    ]  # fmt: skip
    assert found[-1].gap == pytest.approx(3.0 / 100.0)
    assert with_all_candidates((), (recipe, chosen), step_ms=98.0) == ()

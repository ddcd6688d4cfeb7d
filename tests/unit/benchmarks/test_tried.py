"""The harness of public scripts: its table, what it judges, and the page that it writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.tried import commands
from benchmarks.tried.by_hand import lines_of
from benchmarks.tried.commands import AGAIN, BORDER, PLAIN, PLAN, PROFILE, RUN, RUN_AT, VERIFY
from benchmarks.tried.judging import (
    ENDLESS,
    FAILED,
    REFUSED,
    RIGHT,
    WRONG,
    Judged,
    Verdict,
    cause_of,
    groups_of,
    judge,
    step_ms,
)
from benchmarks.tried.markdown import page_of
from benchmarks.tried.running import run_once
from benchmarks.tried.table import Entry, TableError, read_table

ENTRY = Entry(
    name="mnist", repository="some/one", folder="src/mnist", script="main.py", environment={}
)


def record(**given: Any) -> dict[str, Any]:
    """A run that ended well, but for what is given."""
    empty = {"exit": 0, "seconds": 1.0, "first_step_s": None, "steps": [], "other_steps": 0}
    further = {"files": {}, "said": "", "printed": "", "answer": None, "met_border": False}
    return {**empty, **further, **given}


def steps(*digests: str, random: str = "r") -> list[dict[str, Any]]:
    return [
        {"optimizer": 0, "parameters": digest, "random": {"NumPy": random}, "at_s": float(i)}
        for i, digest in enumerate(digests)
    ]


def plain_runs(files: dict[str, str] | None = None) -> dict[str, dict[str, Any]]:
    same = record(steps=steps("a", "b"), files=files or {})
    return {PLAIN: same, AGAIN: same, BORDER: record(met_border=True, files={})}


def verdict(records: dict[str, dict[str, Any]], name: str) -> Verdict:
    return judge(ENTRY, records).verdicts[name]


def test_table_reads_what_it_documents(tmp_path: Path) -> None:
    table = tmp_path / "table.toml"
    table.write_text(
        '[[script]]\nname = "a"\nrepository = "r/r"\nfolder = "src/a"\nscript = "main.py"\n'
        'arguments = ["--n", 3]\nenvironment = {X = "{scripts}/x"}\ndata = [["d", "../d"]]\n'
        '[[script]]\nname = "b"\nrepository = "r/r"\nfolder = "src/b"\nmodule = "b.train"\n'
    )
    first, second = read_table(table)
    assert first.call == ("main.py", "--n", "3")
    assert first.data == (("d", "../d"),)
    assert second.call == ("-m", "b.train")
    assert read_table(table, only=frozenset({"b"})) == (second,)


def test_all_faults_of_a_table_are_said(tmp_path: Path) -> None:
    table = tmp_path / "table.toml"
    table.write_text(
        '[[script]]\nname = "a b"\nrepository = "r"\nfolder = "/f"\nscipt = "x"\n'
        '[[script]]\nname = "c"\n'
    )
    with pytest.raises(TableError) as caught:
        read_table(table)
    said = str(caught.value)
    for fault in ("'scipt'", "'a b' may have", "'folder' is relative", "'repository' is missing"):
        assert fault in said


def test_commit_of_a_repository_is_every_entrys(tmp_path: Path) -> None:
    table = tmp_path / "table.toml"
    row = '[[script]]\nname = "{}"\nrepository = "{}"\nfolder = "f"\nscript = "x"\n'
    rows = row.format("a", "r/r") + row.format("b", "r/r") + row.format("c", "s/s")
    table.write_text(f'[commits]\n"r/r" = "{"0a" * 20}"\n{rows}')
    assert [entry.commit for entry in read_table(table)] == ["0a" * 20, "0a" * 20, ""]
    table.write_text(f'[commits]\n"r/r" = "main"\n"t/t" = "{"0a" * 20}"\n{rows}')
    with pytest.raises(TableError) as caught:
        read_table(table)
    for fault in ("commit 'main' of 'r/r' is not", "no script is from 't/t' of [commits]"):
        assert fault in str(caught.value)


def test_our_table_is_as_wide_as_it_should_be() -> None:
    entries = read_table(Path(commands.__file__).parent / "scripts.toml")
    assert len(entries) >= 40
    assert len({entry.repository for entry in entries}) >= 22
    assert {"loop", "Trainer", "Lightning", "accelerate"} <= {entry.style for entry in entries}
    assert all(entry.commit for entry in entries)


def test_unknown_name_in_only_is_refused(tmp_path: Path) -> None:
    table = tmp_path / "table.toml"
    table.write_text('[[script]]\nname = "a"\nrepository = "r"\nfolder = "f"\nscript = "x"\n')
    with pytest.raises(TableError, match="no script is named 'mnist'"):
        read_table(table, only=frozenset({"mnist"}))


def test_equal_training_is_right() -> None:
    records = {**plain_runs(), RUN: record(steps=steps("a", "b"))}
    judged = judge(ENTRY, records)
    assert judged.verdicts[RUN] == Verdict(RIGHT)
    assert judged.equal_steps == (2, 2)
    assert judged.repeatable


@pytest.mark.parametrize(
    ("run", "outcome", "reason"),
    [
        (record(steps=steps("a", "c")), WRONG, "parameters differ after step 2"),
        (record(steps=steps("a", "b", random="s")), WRONG, "states of NumPy differ after step 1"),
        (record(steps=steps("a")), WRONG, "1 steps instead of 2"),
        (record(exit=1, said="legroom: no plan fits 3 MiB"), REFUSED, "legroom: no plan fits"),
        (record(exit=1, said="Traceback (most recent call last):\nKeyError: 1"), FAILED, "KeyErr"),
        (record(exit=None, seconds=300), ENDLESS, "ended after 300 s"),
        (record(steps=steps("a", "b"), files={"m.pt": "2"}), WRONG, "files differ from plain's: m"),
    ],
)
def test_run_is_judged_by_plain(run: dict[str, Any], outcome: str, reason: str) -> None:
    files = {"files": {"m.pt": "1"}, **{k: v for k, v in run.items() if k != "files" or v}}
    found = verdict({**plain_runs({"m.pt": "1"}), RUN: {**run, **files}}, RUN)
    assert found.outcome == outcome
    assert reason in found.reason


def test_files_that_plain_writes_differently_are_not_compared() -> None:
    records = plain_runs({"log-17.txt": "1", "m.pt": "1"})
    records[AGAIN] = record(steps=steps("a", "b"), files={"log-18.txt": "2", "m.pt": "1"})
    records[RUN] = record(steps=steps("a", "b"), files={"log-19.txt": "3", "m.pt": "1"})
    assert verdict(records, RUN).is_right


def test_failing_as_plain_does_is_right() -> None:
    failed = record(
        exit=1, steps=steps("a"), said="Traceback (most recent call last):\nKeyError: 1"
    )
    records = {PLAIN: failed, AGAIN: failed, RUN: failed}
    assert verdict(records, RUN).is_right


def test_without_an_optimizer_what_is_printed_is_compared() -> None:
    plain = record(printed="loss 1")
    records = {PLAIN: plain, AGAIN: plain, BORDER: record(met_border=True)}
    assert verdict(records, PLAIN).is_right
    assert verdict({**records, RUN: record(printed="loss 1")}, RUN).is_right
    assert not verdict({**records, RUN: record(printed="loss 2")}, RUN).is_right


def test_script_that_differs_from_itself_is_listed_apart() -> None:
    records = plain_runs()
    records[AGAIN] = record(steps=steps("x", "y"))
    records[VERIFY] = record(exit=2, said="legroom: not repeatable")
    records[RUN] = record(steps=steps("u", "v"))
    judged = judge(ENTRY, records)
    assert judged.repeatable is False
    assert all(each.is_right for each in judged.verdicts.values())
    page = page_of([ENTRY], {ENTRY.name: records}, [judged], about=[])
    assert "Two plain runs from the same seeds are not equal" in page


@pytest.mark.parametrize(
    ("planned", "outcome"), [(1000, RIGHT), (1009, RIGHT), (989, WRONG), (1020, WRONG)]
)
def test_plan_is_compared_with_profile(planned: int, outcome: str) -> None:
    records = {
        **plain_runs(),
        PROFILE: record(answer={"peak_bytes": 1000}),
        PLAN: record(answer={"plain_peak_bytes": planned}),
    }
    assert verdict(records, PROFILE).is_right
    assert verdict(records, PLAN).outcome == outcome


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"data": "1", "log.txt": "1", "model.pt": "9"}, "planning wrote model.pt"),
        ({"data": "9", "log.txt": "1"}, "planning changed data"),
        ({"log.txt": "1"}, "planning did not leave data"),
        ({"data": "1", "log.txt": "1"}, ""),
    ],
)
def test_planning_leaves_what_a_killed_script_leaves(files: dict[str, str], reason: str) -> None:
    before = {"data": "1", "log.txt": "1"}
    records = plain_runs({**before, "model.pt": "2"})
    records[BORDER] = record(met_border=True, files=before)
    records[PLAN] = record(answer={"plain_peak_bytes": 1}, files=files)
    assert verdict(records, PLAN).reason == reason


def test_verify_has_to_say_equal() -> None:
    first = {"kind": "loss", "name": "loss", "step": 1}
    different = record(exit=1, answer={"equal": False, "different": [first]})
    assert verdict({**plain_runs(), VERIFY: different}, VERIFY).outcome == WRONG
    equal = record(answer={"equal": True})
    assert verdict({**plain_runs(), VERIFY: equal}, VERIFY).is_right


def test_the_first_of_chained_errors_is_the_cause() -> None:
    said = (
        "noise\nTraceback (most recent call last):\n  File x\n    y()\nValueError: first\n\n"
        "During handling of the above exception\n\nTraceback (most recent call last):\n"
        "RuntimeError: second\n"
    )
    assert cause_of(said) == "ValueError: first"
    assert cause_of("legroom: captured\nlegroom: no plan fits\n  try: x") == "legroom: no plan fits"
    assert cause_of("") == "it said nothing"


def test_the_named_budget_is_found() -> None:
    said = "legroom: no plan fits 1.0 MiB\n  try: a budget of at least 12.5 MiB, a smaller batch"
    assert commands.named_budget(said) == "12.5MiB"
    assert commands.named_budget("legroom: a budget of at least is not said") is None


def test_causes_are_grouped_without_their_figures() -> None:
    def failed(name: str, reason: str) -> Judged:
        verdicts = {RUN: Verdict(REFUSED, reason)}
        return Judged(name=name, repeatable=True, trained=1, equal_steps=None, verdicts=verdicts)

    reasons = ("no plan fits 3 MiB", "no plan fits 1,024.5 MiB", "it is sparse")
    groups = groups_of([failed(f"s{i}", reason) for i, reason in enumerate(reasons)])
    (most, names), (_, single) = groups[RUN].values()
    assert (most, names) == ("no plan fits 3 MiB", ["s0", "s1"])
    assert single == ["s2"]


def test_step_time_is_the_median_of_the_later_steps() -> None:
    taken_s = [None, 9.0, 9.0, 9.0, 9.0, 9.0, 0.5, 0.25, 0.75, 0.5, 0.5]
    rows = [{} if each is None else {"processor_s": each} for each in taken_s]
    assert step_ms(record(steps=rows)) == 500.0
    assert step_ms(record(steps=rows[:1])) is None


def test_page_has_a_row_for_each_script() -> None:
    other = replace(ENTRY, name="vae", commit="0a" * 20)
    answer = {"predicted_peak_bytes": 1 << 20, "measured_peak_bytes": 1 << 20}
    right = {
        **plain_runs(),
        PROFILE: record(answer={"peak_bytes": 2 << 20}),
        PLAN: record(answer={"plain_peak_bytes": 2 << 20}),
        VERIFY: record(answer={"equal": True}),
        RUN: record(steps=steps("a", "b"), answer=answer, first_step_s=1.5),
    }
    right[PLAIN] = {**right[PLAIN], "first_step_s": 0.5}
    refused = record(exit=1, said="legroom: no plan fits 1 MiB | a budget of at least 2 MiB")
    records = {"mnist": right, "vae": {**right, RUN: refused, RUN_AT: right[RUN]}}
    judged = [judge(each, records[each.name]) for each in (ENTRY, other)]
    page = page_of([ENTRY, other], records, judged, about=["machine: x"])
    assert "2 scripts of 1 repositories" in page
    assert "All four commands are right on 1 of 2 scripts." in page
    assert "4 of 4 steps" in page
    assert "| mnist (some/one) |" in page
    assert "| vae (some/one) |" in page
    assert "| some/one | `0a0a0a0a0a0a` |" in page
    assert "at the named budget right" in page
    assert "0.00 % in the median" in page
    assert "1.0 s later than plain's in the median, 1.0 s at worst (mnist)" in page


@pytest.fixture
def setup(tmp_path: Path) -> commands.Setup:
    folder = tmp_path / "src" / "mnist"
    folder.mkdir(parents=True)
    (folder / "main.py").write_text(_SCRIPT)
    source = Path(commands.__file__).parents[2] / "src"
    return commands.Setup(Path(sys.executable), source, tmp_path)


_SCRIPT = """
import importlib.util
assert importlib.util.find_spec("torch")  # only asks whether it is there
import torch
model = torch.nn.Linear(3, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
open("before.txt", "w").write("x")
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(4, 3)).pow(2).mean().backward()
    optimizer.step()
open("after.txt", "w").write("x")
"""


def test_recorder_sees_every_step_and_the_border(setup: commands.Setup, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    found = {
        job.name: run_once(job, ENTRY, setup, scratch=scratch, limit_s=120)
        for job in commands.jobs_of((PLAIN,), ())
    }
    plain, border = found[PLAIN], found[BORDER]
    assert (plain["exit"], len(plain["steps"])) == (0, 3)
    assert len({step["parameters"] for step in plain["steps"]}) == 3
    assert sorted(plain["files"]) == ["work/after.txt", "work/before.txt", "work/main.py"]
    assert border["met_border"]
    assert sorted(border["files"]) == ["work/before.txt", "work/main.py"]
    assert judge(ENTRY, found).repeatable


def test_records_do_not_say_where_things_are(setup: commands.Setup, tmp_path: Path) -> None:
    (setup.scripts / "src" / "mnist" / "main.py").write_text("raise ValueError(__file__)")
    job = commands.Job(PLAIN, mode="steps")
    found = run_once(job, ENTRY, setup, scratch=tmp_path / "scratch", limit_s=120)
    assert cause_of(found["said"]) == "ValueError: {copy}/work/main.py"
    assert str(tmp_path) not in json.dumps(found)


def test_endless_script_is_ended(setup: commands.Setup, tmp_path: Path) -> None:
    (setup.scripts / "src" / "mnist" / "main.py").write_text("import time\ntime.sleep(600)")
    job = commands.Job(PLAIN, mode="steps")
    found = run_once(job, ENTRY, setup, scratch=tmp_path / "scratch", limit_s=1)
    assert found["exit"] is None
    assert found["seconds"] < 60


def test_help_says_what_the_folder_holds() -> None:
    root = Path(commands.__file__).parents[2]
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.tried", "--help"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root / "src")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Each run starts from a fresh copy" in run.stdout


def test_lines_for_a_shell_do_the_same(setup: commands.Setup, tmp_path: Path) -> None:
    entry = replace(ENTRY, arguments=("--name", "two words"), data=(("src/mnist", "../more"),))
    jobs = (commands.Job(PLAIN), commands.Job(AGAIN), commands.Job(RUN, ("--budget", "50%")))
    _, copy, plain, run = lines_of(entry, jobs, setup, scratch=tmp_path / "scratch")
    assert "--budget 50%" in run
    assert "'two words'" in run
    check = f"{copy} && ls ../more && {plain} && ls"
    shell = subprocess.run(["sh", "-c", check], capture_output=True, text=True, check=True)
    assert "after.txt" in shell.stdout


def test_records_serialise(setup: commands.Setup, tmp_path: Path) -> None:
    job = commands.Job(PLAIN, mode="steps")
    found = run_once(job, ENTRY, setup, scratch=tmp_path / "scratch", limit_s=120)
    assert json.loads(json.dumps(found)) == found

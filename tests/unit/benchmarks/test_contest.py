"""The contest: who meets whom, how a worker is asked, who wins, and what a rerun measures."""

from __future__ import annotations

import io
import json
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from benchmarks import cases, peers
from benchmarks.contest import ContestOptions, Entry, Heat, Worker, draw, interval, judge
from benchmarks.contest import _contest as contest
from benchmarks.contest import worker as worker_module
from benchmarks.contest._heats import LINE, terms_of
from benchmarks.contest._judge import Outcome, clock_of
from benchmarks.contest._race import HeatOptions, run_heat
from benchmarks.store import Store, fingerprint
from tests.unit.benchmarks.tiny import build_tiny

BITWISE = {"exactness": "bitwise", "executor": "eager"}
FIELD = HeatOptions(case="tiny", size="small", rounds=3, steps=1, threads=1)


def row(*times_ms: float, peak: int = 100, **further: Any) -> dict[str, Any]:
    times = list(times_ms)
    return {"status": "ready", "peak_bytes": peak, "cpu_ms": times, "wall_ms": times, **further}


class Pretender:
    """A worker without a process: a peak for each peer, and what it was asked."""

    asked: ClassVar[list[dict[str, Any]]]
    caches: ClassVar[list[str]]
    peaks: ClassVar = {"plain": 1000, "checkpoint": 400, "chen": 403, "selective": 700}
    fails = ("save-on-cpu",)

    def __init__(self, *, env: dict[str, str]) -> None:
        self.peer = ""
        Pretender.caches.append(env["TORCHINDUCTOR_CACHE_DIR"])

    def ask(self, do: str, *, timeout_s: float, **command: Any) -> dict[str, Any]:
        Pretender.asked.append({"do": do, "peer": self.peer, **command})
        if do == "prepare":
            self.peer = command["peer"]
            if self.peer == "torch-budget":
                return {"status": "timeout", "why": "it took long"}
            if self.peer in self.fails:
                return {"status": "failed", "why": "it broke"}
            budget = command["setting"].get("budget", 1)
            peak = self.peaks.get(self.peer, budget if isinstance(budget, int) else 500)
            return {"status": "ready", "peak_bytes": peak, "gradient_off": 0.25}
        if do == "time":
            return {"wall_ms": [2.0], "cpu_ms": [1.0]}
        return {"preparation_s": 1.0, "report": {}, "stash_bytes": 5}

    def close(self) -> None:
        pass

    def __enter__(self) -> Pretender:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def settings_of(peer: str) -> list[dict[str, Any]]:
    return [
        each["setting"]
        for each in Pretender.asked
        if each["do"] == "prepare" and each["peer"] == peer
    ]


@pytest.fixture
def pretenders() -> type[Pretender]:
    Pretender.asked, Pretender.caches = [], []
    return Pretender


# -- the verdict ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "outcome"),
    [
        ([8.0, 8.1, 7.9, 8.0, 8.2, 8.1], Outcome.WIN),
        ([12.0, 12.1, 11.9, 12.0, 12.2, 12.1], Outcome.LOSS),
        ([9.0, 11.0, 10.0, 10.1, 9.9, 10.0], Outcome.TIE),
    ],
)
def test_the_whole_interval_decides(ours: list[float], outcome: Outcome) -> None:
    verdict = judge(row(*ours), row(*[10.0] * 6))
    assert verdict.outcome is outcome
    assert verdict.low <= verdict.ratio <= verdict.high


def test_what_processes_differ_by_is_a_tie() -> None:
    theirs = row(*[100.0] * 6)
    assert judge(row(*[98.6] * 6), theirs).outcome is Outcome.TIE
    assert judge(row(*[101.4] * 6), theirs).outcome is Outcome.TIE
    assert judge(row(*[98.4] * 6), theirs).outcome is Outcome.WIN
    assert judge(row(*[101.6] * 6), theirs).outcome is Outcome.LOSS
    above = judge(row(*[98.6] * 6, peak=2**20), theirs)
    assert above.outcome is Outcome.LOSS


def test_a_higher_peak_loses_whatever_the_time() -> None:
    verdict = judge(row(1.0, 1.0, peak=2**20 + 100), row(10.0, 10.0, peak=100))
    assert verdict.outcome is Outcome.LOSS
    assert verdict.why == "peak 1.0 MiB above"


def test_plans_with_less_to_choose_from_share_a_budget() -> None:
    less = row(10.0, 10.0, peak=90, peer="legroom", setting={"budget": 100})
    assert judge(row(1.0, 1.0, peak=95), less).outcome is Outcome.WIN
    assert judge(row(1.0, 1.0, peak=101), less).outcome is Outcome.LOSS


def test_coarser_gradients_lose_on_lossy_terms() -> None:
    theirs = row(10.0, gradient_off=0.1)
    for off, outcome in ((0.105, Outcome.WIN), (0.2, Outcome.LOSS)):
        ours = row(1.0, gradient_off=off, setting={"exactness": "lossy"})
        assert judge(ours, theirs).outcome is outcome
    exact = row(1.0, gradient_off=0.2, setting={"exactness": "rounding"})
    assert judge(exact, theirs).outcome is Outcome.WIN


def test_without_gradients_to_compare_with_lossy_rows_lose() -> None:
    ours = row(1.0, setting={"exactness": "lossy"}, num_compared=0)
    assert judge(ours, row(10.0)).why.startswith("plain could not run")
    exact = row(1.0, setting={"exactness": "bitwise"}, num_compared=0)
    assert judge(exact, row(10.0)).outcome is Outcome.WIN


def test_what_cannot_be_reached_is_a_loss() -> None:
    below = judge({"status": "below floor", "floor_bytes": 2**20}, row(1.0))
    assert (below.outcome, below.why) == (Outcome.LOSS, "cannot go below 1.0 MiB")
    failed = judge({"status": "failed", "why": "it broke"}, row(1.0))
    assert failed.why == "failed: it broke"


def test_interval_of_the_median_covers_enough() -> None:
    # From tables of the sign test: with 6 the extremes, with 11 the second and the tenth.
    assert interval([3.0, 1.0, 2.0]) == (1.0, 3.0)
    assert interval(list(range(1, 7))) == (1, 6)
    assert interval(list(range(1, 12))) == (2, 10)
    assert interval(list(range(1, 26))) == (8, 18)


def test_one_slow_round_does_not_decide() -> None:
    verdict = judge(row(*[8.0] * 10, 80.0), row(*[10.0] * 11))
    assert verdict.outcome is Outcome.WIN


def test_disks_are_judged_by_the_wall() -> None:
    for way in ("disk", "bits on disk"):
        assert clock_of(row(1.0), row(1.0, report={"ways": {way: {}}})) == "wall_ms"
    assert clock_of(row(1.0), row(1.0)) == "cpu_ms"


# -- heats ---------------------------------------------------------------------------------------


def test_every_setting_is_drawn_once() -> None:
    heats = draw(peers.names(), quick=False, most_live=9)
    drawn = [entry.label for heat in heats for entry in heat.entries]
    assert len(drawn) == len(set(drawn))
    for name in peers.names():
        if name not in ("plain", "legroom") and not peers.get(name).missing():
            assert len([each for each in drawn if each.split(" ")[0] == name]) == len(
                peers.get(name).settings
            )
    assert sum(heat.rival is None for heat in heats) == 2
    assert all(heat.num_fixed + heat.num_each * len(heat.entries) <= 9 for heat in heats)


def test_peers_meet_legroom_on_their_terms() -> None:
    for heat in draw(peers.names(), quick=False, most_live=12):
        for entry in heat.entries if heat.rival is not None else ():
            assert terms_of(heat.rival) == terms_of(peers.get(entry.peer).rival)


def test_quick_heats_are_a_part_of_all() -> None:
    quick = {e.label for h in draw(peers.names(), quick=True, most_live=12) for e in h.entries}
    full = {e.label for h in draw(peers.names(), quick=False, most_live=12) for e in h.entries}
    assert quick < full
    assert len(quick) < len(LINE)


def test_legroom_is_fitted_at_the_peaks(pretenders: type[Pretender]) -> None:
    entries = (
        Entry("selective", {"keep": "all"}),
        Entry("chen", {"budget": "lowest"}),
        Entry("checkpoint", {}),
        Entry("save-on-cpu", {}),
    )
    rows = run_heat(Heat("x", entries, BITWISE), FIELD, start=pretenders)
    labels = [each.entry.label for each in rows if each.entry.peer == "legroom"]
    # 400 and 403 are one, at the lower; what failed is met by nobody.
    assert len(labels) == 2
    budgets = [setting["budget"] for setting in settings_of("legroom")]
    assert budgets == [400, 700]
    assert {each.entry.peer: each.rival for each in rows if each.rival} == {
        "checkpoint": labels[0],
        "chen": labels[0],
        "selective": labels[1],
    }
    failed = next(each for each in rows if each.entry.peer == "save-on-cpu")
    assert failed.to_dict()["status"] == "failed"
    assert failed.cpu_ms == []


def test_plan_with_the_disk_meets_the_one_without(pretenders: type[Pretender]) -> None:
    (heat,) = draw(["vdnn"], quick=False, most_live=12)
    rows = run_heat(heat, FIELD, start=pretenders)
    with_disk, without = settings_of("legroom")
    assert with_disk == {"budget": 500, **BITWISE, "disk": True}
    assert without == {"budget": 500, **BITWISE}
    *_, vdnn, ours, less = rows
    assert vdnn.rival == less.rival == ours.entry.label != less.entry.label
    assert ours.rival == ""


def test_plain_is_met_once(pretenders: type[Pretender]) -> None:
    heats = draw(peers.names(), quick=False, most_live=9)
    assert [heat.name for heat in heats if heat.meets_plain] == ["bitwise 1"]
    heat = Heat("x", (Entry("checkpoint", {}),), BITWISE, meets_plain=True)
    plain, _, _, checkpoint, low, high = run_heat(heat, FIELD, start=pretenders)
    assert [each["budget"] for each in settings_of("legroom")] == [400, 1000]
    assert (plain.rival, checkpoint.rival) == (high.entry.label, low.entry.label)


def test_plain_runs_in_further_processes(pretenders: type[Pretender]) -> None:
    heat = Heat("x", (Entry("checkpoint", {}),), BITWISE, meets_plain=True)
    rows = run_heat(heat, FIELD, start=pretenders)
    plain, again, as_it_comes = rows[:3]
    labels = [each.entry.label for each in (plain, again, as_it_comes)]
    assert labels == ["plain", "plain, again", "plain (as it comes)"]
    assert again.rival == as_it_comes.rival == ""
    kept = [each["keeps_freed"] for each in Pretender.asked if each["do"] == "prepare"]
    assert kept == [True, True, False, True, True, True]  # the third shows what glibc does
    assert len(run_heat(replace(heat, meets_plain=False), FIELD, start=pretenders)) == 4


def test_peers_with_the_same_rival_ask_for_the_same_rows() -> None:
    asked: dict[str, set[str]] = {}
    for name in peers.names():
        peer = peers.get(name)
        asked.setdefault(terms_of(peer.rival), set()).add(str(peer.also))
    assert all(len(each) == 1 for each in asked.values())


def test_contestants_take_turns(pretenders: type[Pretender]) -> None:
    heat = Heat("x", (Entry("checkpoint", {}), Entry("chen", {})), None)
    rows = run_heat(heat, FIELD, start=pretenders)
    turns = [each["peer"] for each in Pretender.asked if each["do"] == "time"]
    assert turns == [
        *("plain", "plain", "checkpoint", "chen"),
        *("plain", "checkpoint", "chen", "plain"),
        *("checkpoint", "chen", "plain", "plain"),
    ]
    assert all(each.cpu_ms == [1.0] * 3 for each in rows)
    assert (
        len(set(Pretender.caches)) == 5
    )  # with the reference; nobody finds what another has compiled
    assert not any(" " in each for each in Pretender.caches)  # which Inductor's compiler minds


def test_who_is_too_slow_is_not_tried_again(pretenders: type[Pretender]) -> None:
    entries = tuple(Entry("torch-budget", {"budget": share}) for share in (0.5, 0.2))
    compiled = {"exactness": "rounding", "executor": "inductor"}
    rows = run_heat(Heat("x", (*entries, Entry("checkpoint", {})), compiled), FIELD,
                    start=pretenders)  # fmt: skip
    assert [each.measured["status"] for each in rows][:5] == [
        *("ready", "ready", "timeout", "not tried", "ready")
    ]
    assert rows[3].measured["why"] == "torch-budget (0.5) took too long to prepare"
    # Neither does legroom, compiled; it is a row all the same.
    assert rows[5].measured["status"] == "not tried"


def test_lossy_rivals_keep_to_the_error(pretenders: type[Pretender]) -> None:
    terms = {"exactness": "lossy", "executor": "eager"}
    run_heat(Heat("x", (Entry("actnn", {}),), terms), FIELD, start=pretenders)
    (setting,) = settings_of("legroom")
    assert setting["max_gradient_error"] == 0.25


# -- the worker ----------------------------------------------------------------------------------


def about_tiny(folder: Path) -> dict[str, Any]:
    """What a heat tells each of its workers; freed memory is kept in processes of their own."""
    plain_file = str(folder / "p.pt")
    return {
        "case": "tiny",
        "size": "small",
        "threads": 1,
        "plain_file": plain_file,
        "keeps_freed": False,
    }


def test_worker_prepares_times_and_finishes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cases, "build", build_tiny)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    about = about_tiny(tmp_path)
    worker_module.reference({}, about)
    for peer in ("plain", "checkpoint"):
        commands = [
            {"do": "prepare", "peer": peer, "setting": {}, **about},
            {"do": "time", "steps": 2},
            {"do": "finish"},
            {"do": "nothing"},
        ]
        answers = io.StringIO()
        worker_module.serve(io.StringIO("\n".join(map(json.dumps, commands))), answers)
        ready, timed, finished, wrong = map(json.loads, answers.getvalue().splitlines())
        assert ready["status"] == "ready"
        assert (ready["num_different"], ready["gradient_off"]) == (0, 0.0)
        assert ready["num_compared"] == 17
        assert ready["peak_bytes"] > ready["opening_bytes"] > 0
        assert len(timed["wall_ms"]) == len(timed["cpu_ms"]) == 2
        assert finished["stash_bytes"] > 0
        assert wrong == {"status": "failed", "why": "KeyError: 'nothing'"}


def test_without_plain_nothing_is_compared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cases, "build", build_tiny)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    about = about_tiny(tmp_path)
    ready = worker_module.prepare({}, {"peer": "checkpoint", "setting": {}, **about})
    assert (ready["status"], ready["num_compared"]) == ("ready", 0)
    assert not (tmp_path / "p.pt").exists()


def test_worker_says_why_it_cannot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cases, "build", build_tiny)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    about = about_tiny(tmp_path)
    refused = worker_module.prepare({}, {"peer": "gradient-checkpointing", "setting": {}, **about})
    assert refused["status"] == "not for this case"
    assert "gradient_checkpointing_enable" in refused["why"]
    below = worker_module.prepare(
        {}, {"peer": "legroom", "setting": {"budget": 1000, **BITWISE}, **about}
    )
    assert below["status"] == "below floor"
    assert below["floor_bytes"] > 1000


def test_difference_counts_bits_and_norms() -> None:
    plain = {"loss": torch.tensor(2.0), "a": torch.tensor([3.0, 4.0]), "b": torch.zeros(1)}
    mine = {"loss": torch.tensor(2.2), "a": torch.tensor([3.0, 4.5])}
    found = worker_module.difference(mine, plain)
    assert (found["num_compared"], found["num_different"], found["num_missing"]) == (3, 3, 1)
    assert found["loss_off"] == pytest.approx(0.1)
    assert found["gradient_off"] == pytest.approx(0.1)
    assert found["gradient_off_most"] == 0.5


def process(tmp_path: Path, program: str) -> Worker:
    (tmp_path / "stand_in.py").write_text(textwrap.dedent(program))
    return Worker(module="stand_in", env={"PYTHONPATH": str(tmp_path)})


def test_dead_worker_is_a_row(tmp_path: Path) -> None:
    with process(tmp_path, "input(); raise SystemExit('no more | of it')") as gone:
        answer = gone.ask("prepare", timeout_s=60)
    assert answer == {"status": "failed", "why": "exit code 1: no more / of it"}
    program = "import os, signal; input(); os.kill(os.getpid(), signal.SIGKILL)"
    with process(tmp_path, program) as killed:
        assert killed.ask("prepare", timeout_s=60)["status"] == "out of memory"


def test_slow_worker_is_a_row(tmp_path: Path) -> None:
    with process(tmp_path, "import time; time.sleep(600)") as slow:
        answer = slow.ask("time", timeout_s=0.5)
        assert not slow.is_alive
    assert answer == {"status": "timeout", "why": "time took more than 0 s"}


def test_worker_runs_as_a_process(tmp_path: Path) -> None:
    with Worker() as real:
        answer = real.ask(
            "prepare",
            timeout_s=300,
            case="no-such-case",
            size="small",
            peer="plain",
            setting={},
            threads=1,
            keeps_freed=True,
            plain_file=str(tmp_path / "plain.pt"),
        )
    assert answer["status"] == "failed"
    assert "unknown case 'no-such-case'" in answer["why"]


# -- resuming ------------------------------------------------------------------------------------


def test_a_rerun_measures_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pretenders: type[Pretender]
) -> None:
    real, ran = contest.run_heat, []

    def counted(heat: Heat, options: HeatOptions, **further: Any) -> Any:
        ran.append(heat.name)
        if len(ran) == 2:
            raise KeyboardInterrupt
        return real(heat, options, start=pretenders, **further)

    monkeypatch.setattr(contest, "run_heat", counted)
    options = ContestOptions(peers=("checkpoint", "compile"), rounds=2, most_live=5)
    with pytest.raises(KeyboardInterrupt):
        contest.measure_case("gpt2", options, Store(tmp_path))
    assert ran == ["bitwise 1", "rounding inductor 1"]
    seen: list[tuple[int, int]] = []
    answer = contest.measure_case(
        "gpt2", options, Store(tmp_path), on_progress=lambda what, done, of: seen.append((done, of))
    )
    assert ran == ["bitwise 1", "rounding inductor 1", "rounding inductor 1"]
    assert [heat["name"] for heat in answer["heats"]] == ["bitwise 1", "rounding inductor 1"]
    assert seen[-1] == (contest.num_parts(options),) * 2
    contest.measure_case("gpt2", options, Store(tmp_path))
    assert len(ran) == 3
    contest.measure_case("gpt2", options, Store(tmp_path, fresh=True))
    assert len(ran) == 5


def test_other_options_are_measured_anew(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put("contest.gpt2/x", "abc", {"rows": []})
    assert store.get("contest.gpt2/x", "abc") == {"rows": []}
    assert store.get("contest.gpt2/x", "abd") is None
    assert Store(tmp_path, fresh=True).get("contest.gpt2/x", "abc") is None


def test_fingerprint_follows_code_and_options() -> None:
    folder = Path(contest.__file__).parent
    assert fingerprint([folder], 1) == fingerprint([folder], 1)
    assert fingerprint([folder], 1) != fingerprint([folder], 2)
    assert fingerprint([folder], 1) != fingerprint([folder.parent / "peers"], 1)

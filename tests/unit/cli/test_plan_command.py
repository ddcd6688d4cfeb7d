"""`legroom plan`, `ways` and `show` with a planner that is made up: options in, reports out."""

import importlib
import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from legroom import cli, variants, ways
from legroom.capture import Script
from legroom.cli import _vary
from legroom.cli._output import open_console
from legroom.cli._vary import Variation, parse_variation
from legroom.errors import InfeasibleBudgetError, NoTrainingError, ScriptError, UsageError
from legroom.plan import PlanOptions
from tests.made_up_plan import MIB, made_up_report

MODULE = sys.modules["legroom.plan"]


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """Runs a command in this process; gives exit code, stdout, stderr, and what was planned."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('trains')")
    planned = []

    def plan_script(script, options, *, on_progress):
        planned.append((script, options))
        on_progress("capturing", 0, 1)
        if isinstance(run_one.outcome, Exception):
            raise run_one.outcome
        return run_one.outcome

    monkeypatch.setattr(MODULE, "plan_script", plan_script, raising=False)

    def run_one(*arguments):
        monkeypatch.setattr(sys, "argv", ["legroom", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        return ended.value.code or 0, captured.out, captured.err

    run_one.outcome, run_one.planned = made_up_report(), planned
    return run_one


def test_options_reach_the_planner(run):
    code, out, _ = run(
        "plan", "--budget", "4GiB", "--with", "remake", "--exactness", "rounding", "--device",
        "24GiB, 100 GB/s to host", "--time-limit", "5", "--points", "3", "train.py", "--lr", "1",
    )  # fmt: skip
    assert code == 0
    assert "The plain step peaks at 512.0 MiB" in out
    ((script, options),) = run.planned
    assert script == Script("train.py", ("--lr", "1"))
    assert options == PlanOptions(
        budget="4GiB",
        ways=("remake",),
        asked=("remake",),
        exactness="rounding",
        device="24GiB, 100 GB/s to host",
        time_limit_s=5.0,
        num_points=3,
    )


@pytest.mark.parametrize("command", ["run", "plan", "verify"])
def test_every_kind_of_budget_is_on_the_first_screen_of_help(run, command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = run(command, "--help")
    first_screen = out.splitlines()[:24]
    for budget in ("4GiB", "50%", "free", "lowest"):
        (line,) = [line for line in first_screen if line.strip().startswith(f"--budget {budget} ")]
        assert line.endswith(".")
        assert len(line) < 80


def test_bounds_and_folders_reach_the_planner(run):
    code, _, _ = run("plan", "--stash", "25%", "--disk", "/scratch", "train.py")
    assert code == 0
    ((_, options),) = run.planned
    assert (options.stash, options.disk, options.budget) == ("25%", "/scratch", None)
    assert options.chosen_budget.share == 1.0
    assert "disk" in options.way_names


def test_host_memory_reaches_the_planner(run):
    code, _, err = run("plan", "--host", "--device", "RTX4090", "train.py")
    assert code == 0, err
    ((_, options),) = run.planned
    assert options.host is True
    assert options.moves == ("host",)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("command", ["plan", "run", "verify"])
@pytest.mark.parametrize("asked", [["--host"], ["--with", "host"]])
def test_host_memory_without_an_accelerator_is_misuse(run, command, asked):
    code, _, err = run(command, "--budget", "50%", *asked, "train.py")
    assert code == 2
    assert "there is no CUDA device here" in err
    assert "--disk FOLDER" in err
    assert not run.planned


@pytest.mark.parametrize("command", ["plan", "run", "verify"])
def test_a_folder_without_a_name_is_misuse(run, command):
    code, _, err = run(command, "--budget", "50%", "--disk", "", "train.py")
    assert code == 2
    assert "disk '' is not a folder; name one, as '/scratch'" in err


def test_a_bound_that_is_none_is_told(run):
    code, _, err = run("plan", "--stash", "much", "train.py")
    assert code == 2
    assert "stash 'much' is not a size" in err


def test_defaults_plan_everything(run):
    run("plan", "train.py")
    assert run.planned[0][1] == PlanOptions()


def test_without_leaves_names_out(run):
    run("plan", "--without", "replay", "train.py")
    names = run.planned[0][1].ways
    exact = {each.name for each in (*ways.select(), *variants.select())}
    assert set(names) == exact - {"replay"}


def test_files_are_written_and_shown_again(run, tmp_path):
    code, out, err = run("plan", "--json", "plan.json", "--html", "page.html", "train.py")
    assert code == 0, err
    assert json.loads((tmp_path / "plan.json").read_text())["schema"] == "legroom.plan/1"
    assert "legroom-data" in (tmp_path / "page.html").read_text()
    assert f"wrote {tmp_path / 'plan.json'}" in out.replace("\n", "")
    code, again, _ = run("show", "plan.json", "--html", "again.html")
    assert code == 0
    assert again.split("wrote")[0] == out.split("wrote")[0]
    assert (tmp_path / "again.html").read_text() == (tmp_path / "page.html").read_text()


def test_json_to_stdout_is_alone_there(run):
    code, out, err = run("plan", "--json", "-", "train.py")
    assert code == 0
    assert json.loads(out)["plain_peak_bytes"] == 512 * MIB
    assert "The plain step peaks at" in err


def test_rows_bound_the_tables(run):
    _, out, _ = run("plan", "--rows", "1", "train.py")
    assert "… and 2 more, which release" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--budget", "-1GiB"], "budget '-1GiB' is not a size"),
        (["--budget", "0"], "budget '0' leaves nothing"),
        (["--budget", "150%"], "budget '150%' is more than the plain step needs"),
        (["--budget", "4GiB", "--activations", "50%"], "were both given"),
        (["--with", "remkae"], "Did you mean 'remake'?"),
        (["--without", "hold"], "'hold' cannot be left out"),
        (["--exactness", "almost"], "'almost' is unknown; write bitwise, rounding, lossy"),
        (["--time-limit", "0"], "time limit 0.0 s leaves no time"),
        (["--points", "-1"], "-1 points make no frontier"),
        (["--vary", "batch-size=8:256"], "needs a budget in bytes to fit into, got None"),
        (["--budget", "50%", "--vary", "b=8:256"], "needs a budget in bytes to fit into, got '5"),
        (["--budget", "1GiB", "--vary", "b=8"], "'b=8' is not understood; write ARG=LOW:HIGH"),
        (["--budget", "1GiB", "--vary", "b=9:8"], "--vary 'b=9:8' has nothing to try"),
        (["--device", "toaster"], "'toaster' does not describe a device"),
        (["--json", "gone/plan.json"], "cannot write"),
    ],
)  # fmt: skip
def test_misuse_is_told_before_anything_runs(run, arguments, message):
    code, out, err = run("plan", *arguments, "train.py")
    assert code == 2
    assert err.startswith("legroom: ")
    assert message in err
    assert out == ""
    assert run.planned == []


def test_all_faults_are_told_together(run):
    code, _, err = run(
        "plan", "--budget", "x", "--with", "a", "--with", "b", "--points", "-3", "train.py"
    )
    assert code == 2
    assert err.startswith("legroom: 4 options are wrong:\n  - budget 'x'")


def test_a_missing_script_is_misuse(run):
    code, _, err = run("plan", "gone.py")
    assert code == 2
    assert "script 'gone.py' does not exist" in err


def test_a_budget_below_the_floor_names_the_floor(run):
    run.outcome = InfeasibleBudgetError(
        budget_bytes=100 * MIB,
        floor_bytes=200 * MIB,
        largest=("64.0 MiB lm_head.addmm", "40.0 MiB wte.weight"),
        remedies=("exactness rounding",),
    )
    code, out, err = run("plan", "--budget", "100MiB", "train.py")
    assert code == 1
    assert out == ""
    assert "no plan fits 100.00 MiB" in err
    assert "the lowest is 200.00 MiB (209715200 bytes)" in err
    assert "largest live tensors at that peak: 64.0 MiB lm_head.addmm, 40.0 MiB wte.weight" in err
    assert "200.0MiB (209715200 bytes), or a smaller batch, or exactness rounding" in err


def test_a_failing_script_shows_its_traceback(run):
    run.outcome = ScriptError("train.py failed: ValueError: no", traceback="Traceback: no\n")
    code, _, err = run("plan", "train.py")
    assert code == 1
    assert err.endswith("Traceback: no\nlegroom: train.py failed: ValueError: no\n")


def test_a_script_without_training_is_a_failure(run):
    run.outcome = NoTrainingError("train.py ended without training")
    assert run("plan", "train.py")[0] == 1


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["plan", "train.py"], "interrupted while planning train.py, after its step was captured"),
        (["plan", "--budget", "1GiB", "--vary", "n=1:4", "train.py"], "during legroom plan"),
    ],
)
def test_ctrl_c_is_one_line_and_its_code(monkeypatch, tmp_path, capsys, command, expected):
    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    scripted = importlib.import_module("legroom.plan._scripted")
    monkeypatch.setattr(scripted, "_captured", lambda script, options, on_progress: None)
    monkeypatch.setattr(scripted, "build_report", interrupt)
    monkeypatch.setattr(_vary.subprocess, "run", interrupt)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('trains')")
    monkeypatch.setattr(sys, "argv", ["legroom", *command])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capsys.readouterr().err.splitlines()
    assert ended.value.code == 130
    assert said[-1].startswith("legroom: interrupted ")
    assert said[-1].endswith(expected)
    assert not [line for line in said if not line.startswith("legroom: ")]


class Apart:
    """Stands for the processes that plan one value each: peaks are 60 and 30 MiB per value."""

    def __init__(self, monkeypatch):
        self.commands = []
        monkeypatch.setattr(_vary.subprocess, "run", self)

    def __call__(self, command, **_):
        self.commands.append(command)
        value = int(command[-1])
        report = replace(
            made_up_report(),
            plain_peak_bytes=60 * value * MIB,
            floor_peak_bytes=30 * value * MIB,
            phase_peaks={"backward": 60 * value * MIB},
            chosen=None,
        )
        report.save(command[command.index("--json") + 1])
        return subprocess.CompletedProcess(command, 0, "", "")


def test_vary_finds_the_largest_value(run, monkeypatch):
    apart = Apart(monkeypatch)
    code, out, err = run(
        "plan", "--budget", "300MiB", "--with", "remake", "--vary", "batch-size=1:64", "--json",
        "plan.json", "train.py", "--batch-size", "4",
    )  # fmt: skip
    assert code == 0, err
    assert "The largest batch-size that fits is 10." in out
    assert "trying batch-size 1" in err
    ((script, options),) = run.planned
    assert script.arguments == ("--batch-size", "10")
    assert options.budget == "300MiB"
    for command in apart.commands:
        assert command[1:4] == ["-m", "legroom", "plan"]
        assert command[command.index("--points") :][:2] == ["--points", "0"]
        assert command[command.index("--with") :][:2] == ["--with", "remake"]
        assert "--budget" not in command
    with open("plan.json") as file:
        data = json.load(file)
    tried = {point["value"]: point for point in data["sweep"]}
    assert tried[10]["fits"]
    assert not tried[11]["fits"]
    assert tried[10]["added_ms"] == data["added_ms"]
    assert data["swept_argument"] == "batch-size"


def test_vary_says_why_nothing_fits(run, monkeypatch):
    Apart(monkeypatch)
    run.outcome = InfeasibleBudgetError(budget_bytes=MIB, floor_bytes=30 * MIB)
    code, _, err = run("plan", "--budget", "1MiB", "--vary", "batch-size=1:64", "train.py")
    assert code == 1
    assert "no plan fits 1.00 MiB" in err
    assert run.planned[0][0].arguments == ("--batch-size", "1")


@pytest.mark.parametrize(
    ("stderr", "code", "error", "message"),
    [
        ("noise\nlegroom: it failed: x\n", 1, ScriptError, r"^while trying b 8: it failed: x$"),
        ("legroom: no such option\n", 2, UsageError, "^while trying b 8: no such option$"),
        ("Killed\n", -9, ScriptError, "^while trying b 8: the process ended with code -9$"),
    ],
)
def test_failures_of_one_value_say_which(monkeypatch, stderr, code, error, message):
    ended = subprocess.CompletedProcess([], code, "", stderr)
    monkeypatch.setattr(_vary.subprocess, "run", lambda *_, **__: ended)
    variation = Variation("b", 8, 16)
    with pytest.raises(error, match=message):
        _vary.sweep(Script("train.py"), PlanOptions(budget=MIB), variation, lambda *_: None)


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("batch-size", (), ("--batch-size", "9")),
        ("batch-size", ("--lr", "1"), ("--lr", "1", "--batch-size", "9")),
        ("batch-size", ("--batch-size", "4", "x"), ("--batch-size", "9", "x")),
        ("batch-size", ("--batch-size=4", "x"), ("--batch-size=9", "x")),
        ("data.batch", ("data.batch=4",), ("data.batch=9",)),
        ("-b", ("-b", "4"), ("-b", "9")),
    ],
)
def test_values_take_the_place_of_old_ones(name, before, after):
    script = Variation(name, 1, 9).apply(Script("train.py", before), 9)
    assert script.arguments == after


def test_variations_are_read():
    assert parse_variation("batch-size=8:256") == Variation("batch-size", 8, 256)
    assert parse_variation(" -b = 8:256:8 ") == Variation("-b", 8, 256, 8)


def test_ways_are_listed(run):
    code, out, _ = run("ways")
    assert code == 0
    assert [name for name in (*ways.names(), *variants.names()) if name not in out] == []


def test_ways_are_listed_as_json(run):
    _, out, _ = run("ways", "--json")
    data = json.loads(out)
    assert [each["name"] for each in data["ways"]] == list(ways.names())
    assert [each["name"] for each in data["variants"]] == list(variants.names())
    assert {"name", "summary", "exactness", "costs", "origin"} <= set(data["ways"][0])


def test_help_teaches_with_examples(run):
    code, out, _ = run("plan", "--help")
    assert code == 0
    assert "legroom plan --budget 8GiB --vary batch-size=8:256 train.py" in out
    assert "legroom plan --budget 4GiB train.py" in run("--help")[1]


@pytest.mark.parametrize(("columns", "width"), [("60", 60), (None, 120), ("wide", 120), ("0", 120)])
def test_piped_tables_are_as_wide_as_columns_says(monkeypatch, columns, width):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False, raising=False)
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    assert open_console().width == width


def test_help_lists_commands_in_the_order_of_their_use(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = run("--help")
    assert code == 0
    rows = out[out.index("Commands:") :].splitlines()[1:]
    names = [row.split()[0] for row in rows]
    assert names == ["profile", "plan", "run", "verify", "ways", "tiers", "show"]
    assert not [row for row in rows if row.endswith("...")]

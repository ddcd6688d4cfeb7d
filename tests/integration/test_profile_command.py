"""`legroom profile` and `legroom show` as a user types them, on scripts good and bad."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

LEGROOM = [sys.executable, "-m", "legroom"]
SCRIPTS = Path(__file__).parent / "scripts"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "120"}


def run(*arguments, cwd):
    return subprocess.run(
        [*LEGROOM, *map(str, arguments)], cwd=cwd, capture_output=True, text=True,
        env=ENVIRONMENT, check=False, timeout=300,
    )  # fmt: skip


def write(folder, text, name="train.py"):
    (folder / name).write_text(textwrap.dedent(text))
    return name


LOOP = """
    import sys, torch
    from torch import nn
    net = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 8))
    optimizer = torch.optim.Adam(net.parameters())
    for number in range(int(sys.argv[1])):
        optimizer.zero_grad()
        loss = net(torch.randn(128, 64)).pow(2).mean()
        {middle}
        loss.backward()
        optimizer.step()
        print("step", number)
    print("the end")
"""


def loop(folder, middle="pass"):
    return write(folder, LOOP.replace("{middle}", middle))


@pytest.mark.parametrize(
    ("script", "module", "phases"),
    [
        ("trainer.py", "transformer.h.0.mlp.act", {"forward", "loss", "backward", "optimizer"}),
        ("lightning_module.py", "net.0", {"forward", "loss", "backward", "optimizer"}),
        ("character_gpt.py", "h.0.attn", {"forward", "loss", "backward", "optimizer"}),
        ("gan.py", "Sequential_1.0", {"forward", "loss", "backward", "optimizer"}),
        ("distributed_data.py", "module.0", {"forward", "loss", "backward", "optimizer"}),
        ("compiled.py", None, {"forward", "backward", "optimizer"}),
    ],
)
def test_strangers_scripts_profile_without_change(tmp_path, script, module, phases):
    result = run("profile", "--json", "out.json", SCRIPTS / script, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "trained to the end" not in result.stdout
    data = json.loads((tmp_path / "out.json").read_text())
    assert sum(data["kinds"].values()) == data["peak_bytes"] > 0
    assert data["kinds"]["untracked"] <= 0.03 * data["peak_bytes"]
    assert {span["phase"] for span in data["phases"]} >= phases
    if module is not None:
        assert module in {use["path"] for use in data["modules"]}
        assert data["coverage"]["stash_share"] >= 0.95
        assert any(use["is_user"] and use["file"].endswith(script) for use in data["lines"])


def test_accumulation_is_profiled_as_one_step(tmp_path):
    run("profile", "--json", "out.json", SCRIPTS / "character_gpt.py", cwd=tmp_path)
    data = json.loads((tmp_path / "out.json").read_text())
    assert sum(span["phase"] == "backward" for span in data["phases"]) == 4
    assert sum(span["phase"] == "optimizer" for span in data["phases"]) == 1


def test_memory_that_only_cpp_holds_is_said_to_be_missing(tmp_path):
    run("profile", "--json", "out.json", SCRIPTS / "distributed_data.py", cwd=tmp_path)
    data = json.loads((tmp_path / "out.json").read_text())
    (limit,) = [each for each in data["limits"] if each["name"] == "memory of unknown origin"]
    assert limit["bytes"] == data["kinds"]["weights"]  # DDP's buckets: as large as the weights
    assert "unmatched releases" not in {each["name"] for each in data["limits"]}


@pytest.mark.slow
def test_a_gan_step_has_all_its_updates(tmp_path):
    run("profile", "--json", "out.json", SCRIPTS / "gan.py", cwd=tmp_path)
    data = json.loads((tmp_path / "out.json").read_text())
    assert sum(span["phase"] == "optimizer" for span in data["phases"]) == 4


def test_continue_lets_the_script_finish(tmp_path):
    result = run("profile", "--continue", loop(tmp_path), 8, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "step 7\n" in result.stdout
    assert "the end" in result.stdout
    assert "Memory at the peak" in result.stdout


def test_the_script_stops_after_recording(tmp_path):
    result = run("profile", loop(tmp_path), 8, cwd=tmp_path)
    assert "step 1\n" in result.stdout
    assert "step 2\n" not in result.stdout


def test_several_steps_are_recorded(tmp_path):
    run("profile", "--steps", 3, "--json", "out.json", loop(tmp_path), 8, cwd=tmp_path)
    assert len(json.loads((tmp_path / "out.json").read_text())["steps"]) == 3


def test_json_to_stdout_leaves_everything_else_to_stderr(tmp_path):
    result = run("profile", "--json", "-", loop(tmp_path), 8, cwd=tmp_path)
    assert json.loads(result.stdout)["schema"] == "legroom.profile/1"
    assert "Memory at the peak" in result.stderr
    assert "step 1" in result.stderr


@pytest.mark.parametrize(
    "replacement",
    [
        "type('Tee', (), {'write': lambda s, t: None, 'flush': lambda s: None})()",
        "open('log', 'w')",
    ],
)
def test_a_script_that_replaces_stdout_keeps_its_report(tmp_path, replacement):
    script = loop(tmp_path, f"setattr(sys, 'stdout', {replacement})")
    result = run("profile", script, 8, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "Memory at the peak" in result.stdout


def test_file_is_absolute_as_without_legroom(tmp_path):
    script = loop(tmp_path, "__import__('os').chdir('/'); assert __file__.startswith('/')")
    result = run("profile", "--json", "out.json", script, 8, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    data = json.loads((tmp_path / "out.json").read_text())
    assert any(file.endswith("train.py") for file in data["sources"])


def test_training_on_a_thread_stops_without_a_word(tmp_path):
    loop(tmp_path)
    script = write(
        tmp_path,
        """
        import runpy, threading
        trainer = threading.Thread(target=lambda: runpy.run_path("train.py"))
        trainer.start()
        trainer.join()
        """,
        "threaded.py",
    )
    result = run("profile", "--json", "out.json", script, 8, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr
    assert json.loads((tmp_path / "out.json").read_text())["kinds"]["stash"] > 0


def test_the_model_can_be_dropped_after_recording(tmp_path):
    script = write(
        tmp_path,
        LOOP.replace("{middle}", "pass")
        + """
    import gc, weakref
    gone = weakref.ref(net)
    del net, optimizer, loss
    gc.collect()
    print("dropped", gone() is None)
""",
    )
    result = run("profile", "--continue", script, 6, cwd=tmp_path)
    assert "dropped True" in result.stdout


def test_a_saved_profile_shows_the_same_again(tmp_path):
    first = run("profile", "--json", "p.json", loop(tmp_path), 8, cwd=tmp_path)
    again = run("show", "p.json", "--html", "p.html", cwd=tmp_path)
    table = first.stdout[first.stdout.index("Memory at the peak") :].split("wrote")[0]
    assert table in again.stdout
    assert (tmp_path / "p.html").stat().st_size > 100_000


def test_a_module_profiles_as_with_python_m(tmp_path):
    loop(tmp_path)
    result = run("profile", "--json", "out.json", "-m", "train", "6", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert json.loads((tmp_path / "out.json").read_text())["command"] == "python -m train 6"


# Bad input: one clear message, the right exit code, nothing lost.


def last_words(result):
    return result.stderr[result.stderr.rindex("legroom: ") :]


def test_a_missing_script_is_misuse(tmp_path):
    result = run("profile", "nope.py", cwd=tmp_path)
    assert result.returncode == 2
    assert last_words(result).startswith("legroom: script 'nope.py' does not exist")
    assert "Traceback" not in result.stderr


def test_a_failing_script_shows_its_own_traceback_and_saves(tmp_path):
    script = loop(tmp_path, "assert number < 2, 'bad batch'")
    result = run("profile", "--json", "out.json", script, 8, cwd=tmp_path)
    assert result.returncode == 1
    assert "AssertionError: bad batch" in result.stderr
    assert f"{os.sep}legroom{os.sep}" not in result.stderr
    assert "train.py failed in step 3 at train.py:9: AssertionError" in last_words(result)
    data = json.loads((tmp_path / "out.json").read_text())
    assert not data["is_complete"]
    assert data["kinds"]["stash"] > 0
    assert sum(data["kinds"].values()) == data["peak_bytes"]


def test_a_script_that_never_trains_is_told_so(tmp_path):
    result = run("profile", write(tmp_path, "print('hello')"), cwd=tmp_path)
    assert result.returncode == 1
    assert "train.py ended without training: no backward pass" in last_words(result)


def test_a_script_without_optimizer_is_measured_by_backward(tmp_path):
    script = write(
        tmp_path,
        """
        import torch
        weight = torch.randn(100, 100, requires_grad=True)
        for _ in range(6):
            (weight @ weight).pow(2).mean().backward()
            with torch.no_grad():
                weight -= 0.1 * weight.grad
            weight.grad = None
        """,
    )
    result = run("profile", "--json", "out.json", script, cwd=tmp_path)
    assert result.returncode == 1
    assert "no torch.optim.Optimizer ever stepped" in last_words(result)
    data = json.loads((tmp_path / "out.json").read_text())
    assert data["peak_bytes"] > 0
    assert any("no torch optimizer stepped" in limit["text"] for limit in data["limits"])


@pytest.mark.slow
def test_too_few_steps_name_the_option_that_helps(tmp_path):
    result = run("profile", loop(tmp_path), 2, cwd=tmp_path)
    assert result.returncode == 1
    assert "ended after 2 training steps" in last_words(result)
    assert "`legroom profile --warmup 1`" in last_words(result)
    assert run("profile", "--warmup", 1, loop(tmp_path), 2, cwd=tmp_path).returncode == 0
    assert run("profile", "--warmup", 0, loop(tmp_path), 1, cwd=tmp_path).returncode == 0


def test_a_profiler_of_the_scripts_own_is_named(tmp_path):
    loop(tmp_path)
    script = write(
        tmp_path,
        """
        import runpy, torch
        with torch.profiler.profile():
            runpy.run_path("train.py", run_name="__main__")
        """,
        "profiled.py",
    )
    result = run("profile", script, 6, cwd=tmp_path)
    assert result.returncode == 1
    assert "runs a torch profiler of its own in every one of its 6 steps" in last_words(result)


HUNGRY = """
    import resource, sys, torch
    from torch import nn
    net = nn.Sequential(*[nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))
                          for _ in range(12)])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with open("/proc/self/status") as file:
        held = next(int(line.split()[1]) for line in file if line.startswith("VmData")) * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (held + 400 * 2**20,) * 2)
    for number in range(6):
        rows = 64 if number < int(sys.argv[1]) else 12_000
        optimizer.zero_grad()
        net(torch.randn(rows, 256)).pow(2).mean().backward()
        optimizer.step()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits memory through /proc and setrlimit")
@pytest.mark.parametrize(("warmup", "good_steps"), [(2, 2), (0, 0)])
def test_running_out_of_memory_shows_what_was_alive(tmp_path, warmup, good_steps):
    script = write(tmp_path, HUNGRY)
    result = run(
        "profile", "--warmup", warmup, "--json", "out.json", script, good_steps, cwd=tmp_path
    )
    assert result.returncode == 1
    assert f"train.py ran out of memory in step {good_steps + 1} at train.py:13" in result.stderr
    assert "asking for" in last_words(result)
    data = json.loads((tmp_path / "out.json").read_text())
    assert data["kinds"]["stash"] > 100 * 2**20
    assert sum(data["kinds"].values()) == data["peak_bytes"]


@pytest.mark.skipif(sys.platform != "linux", reason="limits memory through /proc and setrlimit")
def test_running_out_of_memory_in_warm_up_says_how_to_see_more(tmp_path):
    result = run("profile", write(tmp_path, HUNGRY), 0, cwd=tmp_path)
    assert result.returncode == 1
    assert "ran out of memory in step 1" in last_words(result)
    assert "`legroom profile --warmup 0`" in last_words(result)


def test_an_interrupt_saves_what_was_measured(tmp_path):
    script = loop(
        tmp_path, "number == 2 and (print('waiting', flush=True), __import__('time').sleep(60))"
    )
    with subprocess.Popen(
        [*LEGROOM, "profile", "--json", "out.json", script, "8"], cwd=tmp_path, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT,
        # A test run in the background ignores Ctrl-C, and its children would too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    ) as process:  # fmt: skip
        try:
            for line in process.stdout:
                if "waiting" in line:
                    break
            time.sleep(0.3)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "train.py was interrupted in step 3 at train.py:9" in errors
    assert "Traceback" not in errors
    assert not json.loads((tmp_path / "out.json").read_text())["is_complete"]


@pytest.mark.parametrize("option", ["--json", "--html"])
def test_an_unwritable_output_is_told_before_the_script_runs(tmp_path, option):
    result = run("profile", option, "nowhere/out", loop(tmp_path), 8, cwd=tmp_path)
    assert result.returncode == 2
    assert last_words(result).startswith("legroom: cannot write ")
    assert "step 0" not in result.stdout


def test_an_output_that_fails_at_the_end_is_saved_elsewhere(tmp_path):
    script = loop(tmp_path, "__import__('shutil').rmtree('gone', ignore_errors=True)")
    (tmp_path / "gone").mkdir()
    result = run("profile", "--json", "gone/out.json", script, 8, cwd=tmp_path)
    assert result.returncode == 2
    refuge = last_words(result).split("it is saved as '")[1].split("'")[0]
    assert json.loads(Path(refuge).read_text())["schema"] == "legroom.profile/1"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("profile", "--steps", "0", "train.py"), "steps must be at least 1"),
        (("profile", "--device", "tpu9", "train.py"), "'tpu9' is not a device"),
        (("profile", "--device", "mps", "train.py"), "device 'mps' cannot be accounted for yet"),
        (("show", "train.py"), "is not JSON"),
        (("show", "gone.json"), "cannot read 'gone.json'"),
        (("profile", "-m", "no_such_module"), "module 'no_such_module' does not exist"),
    ],
)
def test_misuse_exits_with_two_and_one_message(tmp_path, arguments, message):
    loop(tmp_path)
    result = run(*arguments, cwd=tmp_path)
    assert result.returncode == 2
    assert message in last_words(result)
    assert "Traceback" not in result.stderr


def test_unknown_options_are_answered_with_a_suggestion(tmp_path):
    result = run("profile", "--stepz", "3", loop(tmp_path), cwd=tmp_path)
    assert result.returncode == 2
    assert "--steps" in result.stderr


def test_help_teaches_by_example(tmp_path):
    assert "legroom profile train.py" in run("--help", cwd=tmp_path).stdout
    text = run("profile", "--help", cwd=tmp_path).stdout
    assert "legroom profile --html page.html --json profile.json train.py" in text
    assert run("--version", cwd=tmp_path).stdout.startswith("legroom 0.")

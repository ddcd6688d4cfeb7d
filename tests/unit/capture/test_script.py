import sys

import pytest

from legroom.capture import Script, StopScript, run_script
from legroom.errors import UsageError


@pytest.fixture
def write(tmp_path):
    def write_script(text, name="script.py"):
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write_script


def test_a_script_gets_its_own_arguments_and_folder(write, capsys):
    write("VALUE = 7", "beside.py")
    path = write("import sys, beside; print(sys.argv[1:], beside.VALUE, __name__)")
    before = list(sys.argv), list(sys.path)
    outcome = run_script(Script(path, ("--lr", "0.1")))
    assert outcome.error is None
    assert capsys.readouterr().out == "['--lr', '0.1'] 7 __main__\n"
    assert (sys.argv, sys.path) == before


def test_a_module_runs_as_with_python_m(write, tmp_path, monkeypatch, capsys):
    write("import sys; print('ran', sys.argv[1])", "trainmod.py")
    monkeypatch.chdir(tmp_path)
    assert run_script(Script("trainmod", ("x",), is_module=True)).error is None
    assert capsys.readouterr().out == "ran x\n"


def test_a_missing_script_is_named_with_the_folder():
    with pytest.raises(UsageError, match=r"script 'nope\.py' does not exist \(looked in "):
        run_script(Script("nope.py"))


def test_a_missing_module_is_named():
    with pytest.raises(UsageError, match="module 'no_such_module' does not exist"):
        run_script(Script("no_such_module", is_module=True))


def test_a_folder_without_main_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"folder without a __main__\.py"):
        run_script(Script(str(tmp_path)))


def test_a_failure_keeps_the_scripts_own_traceback(write):
    path = write(
        "def f():\n    raise ValueError('bad batch')\ntry:\n    1 / 0\nexcept Exception:\n    f()\n"
    )
    outcome = run_script(Script(path))
    assert isinstance(outcome.error, ValueError)
    assert outcome.where == f"{path}:2"
    assert "ZeroDivisionError" in outcome.traceback
    assert "raise ValueError('bad batch')" in outcome.traceback
    assert "legroom" not in outcome.traceback
    assert "runpy" not in outcome.traceback


@pytest.mark.parametrize(
    ("code", "failed"), [("", False), ("0", False), ("3", True), ("'no'", True)]
)
def test_exit_codes_are_understood(write, code, failed):
    outcome = run_script(Script(write(f"import sys; sys.exit({code})")))
    assert (outcome.error is not None) == failed


def test_stopping_passes_through_except_exception(write, monkeypatch):
    path = write(
        "from legroom.capture import StopScript\n"
        "try:\n    raise StopScript\nexcept Exception:\n    print('caught')\n"
    )
    outcome = run_script(Script(path))
    assert outcome.was_stopped
    assert outcome.error is None
    assert issubclass(StopScript, BaseException)


def test_an_interrupt_is_an_outcome(write):
    outcome = run_script(Script(write("raise KeyboardInterrupt")))
    assert isinstance(outcome.error, KeyboardInterrupt)


def test_the_command_reads_as_typed():
    assert Script("train.py", ("--lr", "1")).command == "python train.py --lr 1"
    assert Script("pkg.train", (), is_module=True).command == "python -m pkg.train"


def test_the_script_sees_its_name_as_it_was_typed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "seen.py").write_text(
        "import sys, pickle\n"
        "class Kept: pass\n"
        "pickle.loads(pickle.dumps(Kept()))\n"
        "print(sys.argv[0], __file__, __name__)\n"
    )
    outcome = run_script(Script("inner/seen.py"))
    assert outcome.error is None
    path = tmp_path / "inner" / "seen.py"
    assert capsys.readouterr().out == f"inner/seen.py {path} __main__\n"


def test_unions_that_others_made_do_not_decide_the_scripts(tmp_path, monkeypatch, capsys):
    import typing

    monkeypatch.chdir(tmp_path)
    kept = typing.Union[float, int, None]  # noqa: UP007
    (tmp_path / "unions.py").write_text(
        "from typing import Union\nprint(Union[int, float, None].__args__)\n"
    )
    assert run_script(Script("unions.py")).error is None
    assert capsys.readouterr().out == "(<class 'int'>, <class 'float'>, <class 'NoneType'>)\n"
    assert kept.__args__[0] is float

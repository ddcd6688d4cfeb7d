import inspect

import pytest

from legroom import errors


def all_errors():
    return [
        item
        for _, item in inspect.getmembers(errors, inspect.isclass)
        if issubclass(item, errors.LegroomError)
    ]


def test_the_tree_in_the_docstring_names_every_error():
    missing = [item.__name__ for item in all_errors() if item.__name__ not in errors.__doc__]
    assert missing == []


def test_exit_codes_tell_misuse_from_failure():
    assert errors.UsageError.exit_code == errors.OutputError.exit_code == 2
    assert errors.ScriptError.exit_code == errors.NoTrainingError.exit_code == 1
    assert errors.ScriptInterruptedError.exit_code == 130


def test_a_missing_torch_interface_names_the_tested_version():
    with pytest.raises(errors.TorchInterfaceError, match=r"has no usable 'torch\.x'.*2\.13\.0"):
        raise errors.TorchInterfaceError("torch.x", tested="2.13.0")

import inspect

import torch

from legroom.capture import SiteTable, is_model_code, is_user_code


def test_the_line_outside_torch_is_named():
    table = SiteTable()
    number = table.here("encoder")
    line = inspect.currentframe().f_lineno - 1
    site = table.sites[number]
    assert (site.file, site.line, site.module) == (__file__, line, "encoder")
    assert site.function == "test_the_line_outside_torch_is_named"


def test_the_same_place_gets_the_same_number():
    table = SiteTable()
    numbers = [table.here("a") for _ in range(3)]
    assert len(set(numbers)) == 1
    assert table.here("b") not in numbers


def test_torch_and_legroom_and_python_are_not_model_code():
    import json

    import legroom.units

    assert not any(map(is_model_code, (torch.__file__, legroom.units.__file__, json.__file__)))
    assert is_model_code(__file__)
    assert is_user_code(__file__)


def test_installed_models_are_model_code_but_not_the_users():
    import transformers

    assert is_model_code(transformers.__file__)
    assert not is_user_code(transformers.__file__)


def test_notebook_cells_are_the_users():
    assert is_user_code("<ipython-input-3-abc>")
    assert not is_model_code("<frozen runpy>")
    assert not is_user_code("<eval_with_key>.12")

"""Rules about the code itself: import order, public names, what importing costs."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import legroom

SOURCE = Path(legroom.__file__).parent
ORDER = [
    "_version", "errors", "units", "cache", "saved", "registry", "tiers", "capture", "meter",
    "ways", "layers", "variants", "plan", "engine", "report", "integrations", "cli",
    "__main__", "testing",
]  # fmt: skip
RANK = {name: rank for rank, name in enumerate(ORDER)}


def imports_of(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def package_of(path):
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def test_imports_point_one_way():
    upward = []
    for path in SOURCE.rglob("*.py"):
        package = package_of(path)
        if package == "__init__":
            continue
        for module in imports_of(path):
            parts = module.split(".")
            if parts[0] != "legroom" or len(parts) == 1:
                continue
            if RANK[parts[1]] > RANK[package]:
                upward.append(f"{path.relative_to(SOURCE)} imports {module}")
    assert upward == []


def test_every_package_has_a_place_in_the_order():
    packages = {package_of(path) for path in SOURCE.rglob("*.py")} - {"__init__"}
    assert packages <= set(ORDER)


@pytest.mark.parametrize(
    "package", ["tiers", "capture", "meter", "ways", "variants", "plan", "report", "cli"]
)
def test_packages_are_entered_by_their_front_door(package):
    """Modules that start with an underscore are imported within their own package only."""
    trespassers = []
    for path in SOURCE.rglob("*.py"):
        if package_of(path) == package:
            continue
        for module in imports_of(path):
            if module.startswith(f"legroom.{package}._"):
                trespassers.append(f"{path.relative_to(SOURCE)} imports {module}")
    assert trespassers == []


def test_public_names_are_sorted_and_complete():
    visible = {name for name in vars(legroom) if not name.startswith("_")}
    submodules = {package_of(path) for path in SOURCE.rglob("*.py")}
    assert legroom.__all__ == sorted(legroom.__all__)
    assert visible - submodules == set(legroom.__all__) - {"__version__"} - submodules


def test_no_module_is_called_after_nothing():
    banned = {"utils", "common", "helpers", "misc"}
    assert not [p for p in SOURCE.rglob("*.py") if p.stem.strip("_") in banned]


def test_importing_legroom_stays_cheap():
    heavy = "jinja2", "highspy", "matplotlib", "pandas", "transformers", "IPython", "torch._dynamo"
    program = (
        "import sys, torch; before = set(sys.modules); import legroom; "
        "print(' '.join(sorted(set(sys.modules) - before)))"
    )
    added = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    assert [name for name in added if name.startswith(heavy)] == []


def test_every_module_says_what_it_is_for():
    silent = [p for p in SOURCE.rglob("*.py") if not ast.get_docstring(ast.parse(p.read_text()))]
    assert silent == []

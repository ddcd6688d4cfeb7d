"""The entry point of made-up data: write what the table's scripts read.

In goes the folder of scripts; out come `data` and `stubs` in it, the same bytes each time with the
same versions of NumPy, Pillow and transformers. `python -m benchmarks.tried.prepare --help` says
how.
"""

from __future__ import annotations

import argparse
import importlib
import shutil
import subprocess
from pathlib import Path

from benchmarks.progress import Told
from benchmarks.tried.made_up.parts import BESIDE, PARTS, make

_EPILOG = """
examples:
  python -m benchmarks.tried.prepare ~/scripts
  python -m benchmarks.tried.prepare ~/scripts --only mnist,cora
  python -m benchmarks.tried.prepare ~/scripts --torchvision ~/scripts-env/bin/python

`FOLDER/src` is not touched: repositories are checked out there by you. The models need
transformers, the graphs SciPy, so call it with an interpreter that has them.
"""
HOOK = "torchvision_without_operators"


class PrepareError(Exception):
    """The data cannot be written; says why and what to do."""


def main(arguments: list[str] | None = None) -> None:
    """Write parts, one after the other."""
    parser = _parser()
    options = parser.parse_args(arguments)
    names = options.only.split(",") if options.only else list(PARTS)
    if unknown := sorted(set(names) - set(PARTS)):
        parser.error(f"unknown part {unknown[0]!r}; known: {', '.join(PARTS)}")
    try:
        if options.torchvision:
            print(f"wrote {install_hook(options.torchvision)}")
            importlib.import_module(
                f"benchmarks.tried.made_up.beside.{HOOK}"
            )  # `models` may need it
        prepare(options.folder, names)
    except PrepareError as error:
        parser.error(str(error))


def prepare(folder: Path, names: list[str]) -> None:
    """Write these parts below the folder, which is made if it is not there.

    Raises:
        PrepareError: The folder cannot be written to, or a package is missing.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PrepareError(f"cannot use {str(folder)!r} as the folder: {error.strerror}") from error
    with Told("made up", total=len(names)) as told:
        for over, name in enumerate(names, 1):
            try:
                make(name, folder)
            except OSError as error:
                raise PrepareError(f"cannot write {name!r} below {folder}: {error}") from error
            except ImportError as error:
                raise PrepareError(
                    f"cannot import what {name!r} needs: {error}. Install it, or leave the part "
                    "out with `--only`"
                ) from error
            told.done(name, over)


def install_hook(python: Path) -> Path:
    """Have this interpreter import torchvision without its compiled operators.

    Raises:
        PrepareError: It is not an interpreter.
    """
    line = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    try:
        said = subprocess.run(
            [python, "-c", line], capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise PrepareError(f"cannot run {str(python)!r} as an interpreter: {error}") from error
    packages = Path(said.strip())
    shutil.copy(BESIDE / f"{HOOK}.py", packages)
    (packages / f"{HOOK}.pth").write_text(f"import {HOOK}\n")
    return packages / f"{HOOK}.py"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tried.prepare",
        description="Write the made-up data that the table's scripts read.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("folder", type=Path, metavar="FOLDER", help="of scripts; data and stubs are written there")
    add("--only", default="", metavar="NAME,…", help="these parts; all by default")
    add(
        "--torchvision",
        type=Path,
        metavar="PYTHON",
        help="also have this interpreter import torchvision without its compiled operators",
    )
    return parser


if __name__ == "__main__":
    main()

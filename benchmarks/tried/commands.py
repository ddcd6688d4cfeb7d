"""What is run for each script: plain Python and legroom's commands.

In goes an entry; out come the arguments, the environment and what the recorder is asked for.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import final

from benchmarks.tried.table import Entry

PLAIN, AGAIN, BORDER = "plain", "plain again", "plain until its first trained call"
PROFILE, PLAN, VERIFY, RUN, RUN_AT = "profile", "plan", "verify", "run", "run at the named budget"
COMMANDS = (PLAIN, PROFILE, PLAN, VERIFY, RUN)
"""What `--commands` takes. `plain` stands for three runs, `run` for two where a budget is named."""

RECORDER = Path(__file__).parent / "recorder"
DEFAULT_BUDGET = ("--activations", "50%")


@final
@dataclass(frozen=True)
class Setup:
    """What all runs have in common.

    Args:
        python: The interpreter that the scripts need.
        legroom: The folder that has the package `legroom` in it.
        scripts: The folder of checked-out scripts.
        threads: For OpenMP; with one thread sums have one order.
    """

    python: Path
    legroom: Path
    scripts: Path
    threads: int = 1


@final
@dataclass(frozen=True)
class Job:
    """One run of one script.

    Args:
        name: One of the constants of this module.
        options: Of legroom; for plain runs none.
        mode: What the recorder does: `seed`, `steps`, `border`.
    """

    name: str
    options: tuple[str, ...] = ()
    mode: str = "seed"

    @property
    def is_plain(self) -> bool:
        """Whether legroom has no part in it."""
        return self.name in (PLAIN, AGAIN, BORDER)

    @property
    def command(self) -> str:
        """Of legroom."""
        return RUN if self.name == RUN_AT else self.name


def jobs_of(commands: tuple[str, ...], budget: tuple[str, ...]) -> tuple[Job, ...]:
    """What runs for each script, in order; the run at a named budget is known only later."""
    known = {
        PLAIN: (Job(PLAIN, mode="steps"), Job(AGAIN, mode="steps"), Job(BORDER, mode="border")),
        PROFILE: (Job(PROFILE),),
        PLAN: (Job(PLAN),),
        VERIFY: (Job(VERIFY, budget),),
        RUN: (Job(RUN, budget, mode="steps"),),
    }
    return tuple(job for command in commands for job in known[command])


def run_at(budget: str) -> Job:
    """`run` at a budget that a refusal named."""
    return Job(RUN_AT, ("--budget", budget), mode="steps")


def arguments_of(job: Job, entry: Entry, setup: Setup, answer: Path) -> tuple[str, ...]:
    """The command line; what legroom answers goes to the file `answer`."""
    call = tuple(_filled(each, setup) for each in entry.call)
    if job.is_plain:
        return (str(setup.python), *call)
    options = (*job.options, "--json", str(answer))
    return (str(setup.python), "-m", "legroom", job.command, *options, *call)


def environment_of(
    job: Job, entry: Entry, setup: Setup, *, home: Path, record: Path
) -> dict[str, str]:
    """The environment: the machine's own, without what would change a run, and the script's."""
    own = {key: _filled(value, setup) for key, value in entry.environment.items()}
    paths = [str(RECORDER), own.pop("PYTHONPATH", "")]
    if not job.is_plain:
        paths.insert(1, str(setup.legroom))
    return {
        **{key: value for key, value in os.environ.items() if key in _KEPT},
        "HOME": str(home),
        "OMP_NUM_THREADS": str(setup.threads),
        "MKL_NUM_THREADS": str(setup.threads),
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "MPLBACKEND": "Agg",
        "COLUMNS": "200",
        "HF_HUB_OFFLINE": "1",
        "WANDB_MODE": "disabled",
        **own,
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "TRIED_MODE": job.mode,
        "TRIED_FOLDER": str(record),
    }


def named_budget(said: str) -> str | None:
    """The budget that a refusal says would do, as `--budget` takes it; None if it names none."""
    found = re.search(r"a budget of at least\s+([\d.,]+\s?[KMGT]?i?B)", said)
    return found.group(1).replace(" ", "").replace(",", "") if found else None


_KEPT = ("PATH", "LANG", "LC_ALL", "TMPDIR", "SSL_CERT_FILE", "LD_LIBRARY_PATH", "TERM")


def _filled(text: str, setup: Setup) -> str:
    return text.replace("{scripts}", str(setup.scripts))

"""Makes the pages of ways, variants and presets from the registry; what people wrote stays.

    python docs/pages.py            write what the registry says into docs/ways and docs/presets
    python docs/pages.py --run      also run every page's example and write what it prints
    python docs/pages.py --check    write nothing; exit with 1 if a page is missing or out of date

A page has a part that is made here, between two comments, and after it an example that somebody
wrote: a program, and what it prints. Bytes are the same everywhere, so a test compares them.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

from legroom.report import ways_data

DOCS = Path(__file__).parent
BEGIN = "<!-- made from the registry by docs/pages.py: change the class instead -->"
END = "<!-- what follows was written by hand -->"
EXAMPLE = re.compile(r"```python\n(?P<program>.*?)```\n\n```text\n(?P<output>.*?)```\n", re.S)
FOLDERS = {"ways": "ways", "variants": "ways", "presets": "presets"}


def entries():
    """Every entry of the registries, and the path of its page."""
    data = ways_data()
    for key, folder in FOLDERS.items():
        for each in data[key]:
            yield each, DOCS / folder / f"{each['name']}.md"


def made_of(each):
    """The part of a page that says what the registry knows."""
    facts = [
        ("what it is", each["kind"]),
        ("exactness", f"`{each['exactness']}`"),
        ("error", f"{each['error']:g} of the norm, of normal numbers" if each["error"] else ""),
        ("used", each["used"]),
        ("made of", ", ".join(f"[`{way}`](../ways/{way}.md)" for way in each["uses"])),
        ("origin", each["origin"]),
    ]
    rows = "\n".join(f"| {label} | {text} |" for label, text in facts if text)
    return "\n\n".join(
        [
            f"# `{each['name']}`\n\n{BEGIN}",
            f"{_sentence(each['summary'])}",
            f"| | |\n|---|---|\n{rows}",
            f"## When to use it\n\n{each['when']}",
            f"## What it costs\n\n{_sentence(each['costs'])}",
            f"## How to switch it on\n\n```\n{each['python']}\n{each['command']}\n```\n\n"
            + _how(each),
            f"## What it does not combine with\n\n{_not_with(each)}",
            f"{END}\n",
        ]
    )


def _sentence(clause):
    return f"{clause[0].upper()}{clause[1:]}."


def _how(each):
    if each["kind"] == "preset":
        return (
            "So it is followed alone, and the budget picks among its forms. Without a name it "
            "competes with all others, and no plan is worse than it."
        )
    if each["name"] == "hold":
        return "It is there without being named."
    if not each["left_out"]:
        return f"Beside all other ways. `--with {each['name']}` uses nothing but it, and `hold`."
    argument, option = each["left_out"].split(", ")
    return (
        f"So nothing but this is used, and `hold`; name several to use all of them. `{argument}` "
        f"and `{option}` leave it out."
    )


def _not_with(each):
    executors = "".join(
        f' `executor="{name}"` does without it, and refuses it where it is named.'
        for name in each["not_with_executors"]
    )
    return f"{each['not_with']}{executors}"


def index_of(folder, title, text):
    """The page that lists a folder's pages."""
    found = [each for each, path in entries() if path.parent.name == folder]
    rows = "\n".join(
        f"| [`{each['name']}`]({each['name']}.md) | {each['kind']} | {each['exactness']} "
        f"| {each['summary']} | {each['costs']} |"
        for each in found
    )
    names = "\n".join(each["name"] for each in found)
    return (
        f"# {title}\n\n{BEGIN}\n\n{text}\n\n| name | | exactness | what it does | what it costs |\n"
        f"|---|---|---|---|---|\n{rows}\n\n```{{toctree}}\n:hidden:\n\n{names}\n```\n"
    )


def index_pages():
    """Path and text of the pages that list others."""
    return {
        DOCS / "ways" / "index.md": index_of(
            "ways",
            "Ways, variants and rewrites",
            "What a plan may do with a tensor that backward needs (*way*), with a formula of "
            "backward (*variant*), and with a part of the graph (*rewrite*). `legroom ways` lists "
            "them in a terminal, `legroom ways NAME` shows one.",
        ),
        DOCS / "presets" / "index.md": index_of(
            "presets",
            "Presets: recipes of the literature",
            "What systems of the literature do, as choices on the captured graph. All of them "
            "compete in every plan; `preset=` and `--preset` follow one alone.",
        ),
    }


def pages():
    """Path and text of every page, with what people wrote as it is."""
    found = index_pages()
    for each, path in entries():
        text = path.read_text() if path.exists() else END
        _, _, written = text.partition(END)
        found[path] = made_of(each).rstrip("\n") + (written or "\n")
    return found


def output_of(program):
    """What a program prints, in a process of its own: what is alive beside it counts as memory."""
    command = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"an example failed:\n{program}\n{done.stderr}")
    return done.stdout


def with_outputs(text):
    """A page with what its examples print now."""

    def run(match):
        program = match["program"]
        return f"```python\n{program}```\n\n```text\n{output_of(program)}```\n"

    return EXAMPLE.sub(run, text)


def main():
    """Write or check the pages."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--run", action="store_true", help="run the examples too")
    parser.add_argument("names", nargs="*", help="of the pages to run examples of; none: all")
    options = parser.parse_args()
    stale = []
    for path, made in pages().items():
        is_run = options.run and (not options.names or path.stem in options.names)
        text = with_outputs(made) if is_run else made
        if not path.exists() or path.read_text() != text:
            stale.append(path.relative_to(DOCS).as_posix())
            if not options.check:
                path.parent.mkdir(exist_ok=True)
                path.write_text(text)
    if options.check and stale:
        sys.exit(f"out of date, run `python docs/pages.py`: {', '.join(stale)}")
    for name in stale:
        print(f"wrote docs/{name}")


if __name__ == "__main__":
    main()

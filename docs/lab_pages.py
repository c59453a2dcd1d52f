"""Puts the story of real runs into the pages of the documents: `python docs/lab_pages.py HOME`.

In a page, what stands between `<!-- lab: NAME -->` and `<!-- end -->` is written anew from the result that is kept
under HOME, which must be green; a lab that was not run there keeps its text. All other text is written by hand.
Pictures are copied to docs/pictures.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from headrace.home import Home
from headrace.labs.report import duration, entry_markdown, table_markdown
from headrace.labs.result import Entry, LabResult, kept_results, result_folder

DOCS = Path(__file__).parent
PICTURES = DOCS / "pictures"
MARKED = re.compile(r"(<!-- lab: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def fill(page: Path, home: Home) -> None:
    """The page tells the runs that are kept under the home."""

    def told(found: re.Match[str]) -> str:
        results = list(kept_results(home, (found[2],)))
        if not results:
            return found[0]
        if results[0].verdict != "green":
            raise SystemExit(f"{page.name}: the run of {found[2]} in {home.root} is {results[0].verdict}")
        blocks = story(results[0], result_folder(home, found[2]))
        return found[1] + without_paths("\n\n".join(blocks), home) + "\n\n" + found[3]

    page.write_text(MARKED.sub(told, page.read_text(encoding="utf-8")), encoding="utf-8")


def without_paths(text: str, home: Home) -> str:
    """The text with the home as a reader has it, also where a long cell was cut off in the middle of the path."""
    root = str(home.root)
    for end in range(len(root), 1, -1):
        text = text.replace(root[:end] + "…", "…")
    return text.replace(root, ".headrace")


def story(result: LabResult, folder: Path) -> Iterator[str]:
    """A run as blocks of Markdown: what it shows, then its steps with commands, output, tables, pictures and checks."""
    yield f"**{result.title}** ({', '.join(result.rows)})"
    yield result.about
    yield f"*{len(result.checks)} checks, all of which held in this run of {duration(result.seconds)}.*"
    for kind, entries in groupby(result.entries, key=lambda entry: entry.kind):
        yield from _blocks(kind, list(entries), result, folder)


def _blocks(kind: str, entries: Sequence[Entry], result: LabResult, folder: Path) -> Iterator[str]:
    """What follows each other and is of one kind shares a block."""
    facts = [entry.facts for entry in entries]
    if kind == "command":
        yield "\n".join(["```console", *(f"$ {one['line']}" for one in facts), "```"])
    elif kind == "check":
        rows = [(one["what"], one["expected"], one["seen"]) for one in facts]
        yield "\n".join(table_markdown(["check", "expected", "seen"], rows))
    elif kind == "figure":
        for one in facts:
            PICTURES.mkdir(exist_ok=True)
            name = f"{result.name}-{one['name']}.svg"
            shutil.copyfile(folder / one["light"], PICTURES / name)
            yield f"![{one['caption']}](pictures/{name})"
            yield f"*{one['caption']}*"
    else:
        glue = "\n" if kind == "measure" else "\n\n"
        yield glue.join("\n".join(entry_markdown(entry, Path())).strip() for entry in entries)


if __name__ == "__main__":
    for each in sorted(DOCS.glob("labs-s*.md")):
        fill(each, Home(Path(sys.argv[1])))

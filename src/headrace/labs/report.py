"""Reports: what labs did and saw, as Markdown and as one HTML page that needs nothing beside itself.

Both are made from kept results alone. The HTML page carries its own style and pictures, follows the reader's choice of
light or dark, and can be sent as one file; the Markdown refers to the picture files beside it.
"""

from __future__ import annotations

import base64
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from textwrap import dedent

from headrace.home import Home, write_private
from headrace.labs.catalogue import NAMES
from headrace.labs.lab import DOCUMENTS
from headrace.labs.result import Entry, LabResult, kept_results, result_folder

_TITLE = "headrace labs"
# A line of a list in two columns: a term, and what is said of it.
_TERM = re.compile(r" {4}(\S+(?: \S+)*) {2,}(\S+(?: \S+)*)")


def write_reports(home: Home, results: Sequence[LabResult]) -> Path:
    """Each of these labs has its report, and all kept ones together have one; the HTML page of all."""
    for result in results:
        folder = result_folder(home, result.name)
        write_private(folder / "report.md", to_markdown([result], lambda _: Path()))
        write_private(folder / "report.html", to_html(home, [result]))
    every = list(kept_results(home, NAMES))
    page = home.labs / "report.html"
    write_private(home.labs / "report.md", to_markdown(every, lambda one: Path(one.name)))
    write_private(page, to_html(home, every))
    return page


def duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else f"{int(seconds // 60)} min {int(seconds % 60)} s"


def quantity(value: float, unit: str) -> str:
    digits = f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.3g}"
    return f"{digits} {unit}".rstrip()


def totals(results: Sequence[LabResult]) -> str:
    """How the labs ended and what their checks say; a lab that stopped early has made fewer checks than it would."""
    verdicts = Counter(one.verdict for one in results)
    checks = sum(len(one.checks) for one in results)
    failed = sum(len(one.failed) + len(one.excused) for one in results)
    early = [one.name for one in results if one.trouble]
    parts = [
        f"{len(results)} of {len(NAMES)} labs: {verdicts['green']} green, {verdicts['red']} red"
        + (f", {verdicts['inconclusive']} inconclusive" if verdicts["inconclusive"] else ""),
        f"{checks - failed} of {checks} checks hold",
    ]
    if early:
        parts.append(f"not all checks were made by {', '.join(early)}")
    return " · ".join(parts)


# -- Markdown ---------------------------------------------------------------------------------------------------


def to_markdown(results: Sequence[LabResult], pictures: Callable[[LabResult], Path]) -> str:
    """The labs one after another; `pictures` gives the folder of a lab's picture files."""
    parts = [] if len(results) == 1 else [f"# {_TITLE}\n", f"{totals(results)}\n", _summary_markdown(results)]
    parts += [_lab_markdown(result, pictures(result)) for result in results]
    return "\n".join(parts)


def _summary_markdown(results: Sequence[LabResult]) -> str:
    lines = ["| lab | rows | verdict | checks | time | |", "|---|---|---|---|---|---|"]
    lines += [
        f"| [{one.name}](#{one.name}) | {' '.join(one.rows)} | {one.verdict} | {one.held} of {len(one.checks)} "
        f"| {duration(one.seconds)} | {_cell(one.reason or one.title)} |"
        for one in results
    ]
    return "\n".join(lines) + "\n"


def _lab_markdown(result: LabResult, pictures: Path) -> str:
    lines = [f"## {result.name}", "", f"**{result.title}** ({', '.join(result.rows)}): **{result.verdict}**", ""]
    if result.reason:
        lines += [f"> {result.reason}", ""]
    lines += [result.about, "", _facts_line(result), ""]
    for entry in result.entries:
        lines += entry_markdown(entry, pictures)
    lines += _trouble_markdown(result)
    return "\n".join(lines) + "\n"


def _facts_line(result: LabResult) -> str:
    chosen = ", ".join(f"{name} = {value}" for name, value in result.parameters.items())
    where = result.cluster
    ran_on = f"Kafka {where['kafka_version']}, {where['brokers']} brokers" if where else "no cluster"
    return (
        f"Run {result.began}, {duration(result.seconds)}, {ran_on}, seed {result.seed}."
        + (f" Parameters ({result.profile}): {chosen}." if chosen else "")
    )  # fmt: skip


def entry_markdown(entry: Entry, pictures: Path) -> list[str]:
    """One thing of a lab's story as lines; `pictures` is where the picture files lie."""
    facts = entry.facts
    match entry.kind:
        case "step":
            return [f"### {facts['title']}", "", *([facts["why"], ""] if facts["why"] else [])]
        case "say":
            return [facts["text"], ""]
        case "command":
            return [f"    $ {facts['line']}", ""]
        case "output":
            return ["```", facts["text"], "```", ""]
        case "check":
            return [f"- {check_sign(facts)} {_check_words(facts)}", ""]
        case "measure":
            note = f" ({facts['note']})" if facts["note"] else ""
            return [f"- {facts['what']}: **{quantity(facts['value'], facts['unit'])}**{note}", ""]
        case "table":
            return [f"{facts['title']}:", "", *table_markdown(facts["headings"], facts["rows"]), ""]
        case "figure":
            return [f"![{facts['caption']}]({(pictures / facts['light']).as_posix()})", "", f"*{facts['caption']}*", ""]


def _check_words(facts: dict[str, object]) -> str:
    words = f"{facts['what']}: expected {facts['expected']}, seen {facts['seen']}"
    if facts.get("excuse"):
        return f"{words} ({facts['excuse']})"
    return words if facts["holds"] or not facts["look"] else f"{words}. Look at: `{facts['look']}`"


def check_sign(facts: dict[str, object]) -> str:
    """Whether a check holds, as a sign."""
    return "✓" if facts["holds"] else "?" if facts.get("excuse") else "✗"


def table_markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The lines of a table."""
    yield "| " + " | ".join(map(_cell, headings)) + " |"
    yield "|" + "---|" * len(headings)
    for row in rows:
        yield "| " + " | ".join(map(_cell, row)) + " |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _trouble_markdown(result: LabResult) -> list[str]:
    lines: list[str] = []
    if result.trouble:
        lines += [f"**{result.trouble.problem}**", ""]
        lines += [f"- {label}: {text}" for label, text in result.trouble.lines]
        lines += ["", "```", result.trouble.trace.rstrip(), "```"] if result.trouble.trace else []
    if result.logs:
        lines += ["", "What the nodes logged meanwhile: " + ", ".join(f"`{file}`" for file in result.logs.values())]
    return lines


# -- HTML -------------------------------------------------------------------------------------------------------


def to_html(home: Home, results: Sequence[LabResult]) -> str:
    """The labs as one page."""
    from jinja2 import Environment

    here = files("headrace.labs")
    page = here.joinpath("report.html").read_text(encoding="utf-8")
    template = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(page)
    return template.render(
        title=f"{_TITLE}: {results[0].name}" if len(results) == 1 else _TITLE,
        style=here.joinpath("report.css").read_text(encoding="utf-8"),
        totals=totals(results),
        results=results,
        documents=DOCUMENTS,
        duration=duration,
        quantity=quantity,
        facts_line=_facts_line,
        paragraphs=_paragraphs,
        groups=_groups,
        numeric_columns=_numeric_columns,
        picture=lambda result, file: _inline(result_folder(home, result.name) / file),
    )


def _paragraphs(about: str) -> Iterator[tuple[str, object]]:
    """The paragraphs of a docstring; indented ones are drawings or lists in two columns."""
    for text in about.split("\n\n"):
        if all(line.startswith("    ") for line in text.splitlines()):
            terms = [_TERM.fullmatch(line) for line in text.splitlines()]
            columns = [(term[1], term[2]) for term in terms if term]
            yield ("terms", columns) if all(terms) else ("pre", dedent(text))
        else:
            yield "p", " ".join(text.split())


def _groups(entries: Sequence[Entry]) -> Iterator[tuple[str, list[dict[str, object]]]]:
    """Entries of one kind that follow each other: commands, checks and measurements share a box."""
    for kind, group in groupby(entries, key=lambda entry: entry.kind):
        yield kind, [entry.facts for entry in group]


def _numeric_columns(rows: Sequence[Sequence[str]], columns: int) -> list[bool]:
    return [all(_is_number(row[at]) for row in rows) for at in range(columns)]


def _is_number(text: str) -> bool:
    if ", " in text:  # a list
        return False
    return not text or text.partition(" ")[0].replace(",", "").replace(".", "", 1).lstrip("-").isdigit()


def _inline(picture: Path) -> str:
    if not picture.is_file():
        return ""
    return "data:image/svg+xml;base64," + base64.b64encode(picture.read_bytes()).decode()

"""Reports: what labs did and saw, as Markdown and as one HTML page that needs nothing beside itself.

Both are made from kept results alone. The HTML page carries its own style and pictures, follows the reader's choice of
light or dark, and can be sent to somebody as one file; the Markdown refers to the picture files beside it.
"""

from __future__ import annotations

import base64
import html
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from textwrap import dedent
from typing import Any

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


def to_markdown(results: Sequence[LabResult], pictures: Any) -> str:
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


def _check_words(facts: dict[str, Any]) -> str:
    words = f"{facts['what']}: expected {facts['expected']}, seen {facts['seen']}"
    if facts.get("excuse"):
        return f"{words} ({facts['excuse']})"
    return words if facts["holds"] or not facts["look"] else f"{words}. Look at: `{facts['look']}`"


def check_sign(facts: dict[str, Any]) -> str:
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
        lines += [f"- {label}: {text}" for label, text in _trouble_lines(result)]
        lines += ["", "```", result.trouble.trace.rstrip(), "```"] if result.trouble.trace else []
    if result.logs:
        lines += ["", "What the nodes logged meanwhile: " + ", ".join(f"`{file}`" for file in result.logs.values())]
    return lines


def _trouble_lines(result: LabResult) -> list[tuple[str, str]]:
    trouble = result.trouble
    if not trouble:
        return []
    told = (("why", trouble.why), ("try", trouble.hint), ("log", trouble.log))
    return [(label, text) for label, text in told if text]


# -- HTML -------------------------------------------------------------------------------------------------------


def to_html(home: Home, results: Sequence[LabResult]) -> str:
    """The labs as one page."""
    style = files("headrace.labs").joinpath("report.css").read_text(encoding="utf-8")
    title = f"{_TITLE}: {results[0].name}" if len(results) == 1 else _TITLE
    body = "".join(_lab_html(result, result_folder(home, result.name)) for result in results)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{_text(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" '
        f'content="light dark"><style>{style}</style></head><body>{_header_html(title, results)}'
        f"<main>{body}</main></body></html>\n"
    )


def _header_html(title: str, results: Sequence[LabResult]) -> str:
    head = f'<header><h1>{_text(title)}</h1><p class="told">{_text(totals(results))}</p>'
    if len(results) == 1:
        return head + "</header>"
    rows = "".join(
        f'<tr><td><a href="#{one.name}">{one.name}</a></td><td>{" ".join(one.rows)}</td><td>{_pill(one.verdict)}</td>'
        f'<td class="number">{one.held} / {len(one.checks)}</td>'
        f'<td class="number">{duration(one.seconds)}</td><td>{_text(one.reason or one.title)}</td></tr>'
        for one in results
    )
    return (
        head + '<div class="wide"><table class="index"><thead><tr><th>lab</th><th>rows</th><th>verdict</th>'
        f"<th>checks</th><th>time</th><th></th></tr></thead><tbody>{rows}</tbody></table></div></header>"
    )


def _pill(verdict: str) -> str:
    return f'<span class="pill {verdict}">{verdict}</span>'


def _lab_html(result: LabResult, folder: Path) -> str:
    paragraphs = "".join(_paragraph(text) for text in result.about.split("\n\n"))
    reason = f'<p class="reason">{_text(result.reason)}</p>' if result.reason else ""
    entries = "".join(_grouped_html(result.entries, folder))
    return (
        f'<article id="{result.name}"><h2><span class="name">{result.name}</span> {_text(result.title)} '
        f'{_pill(result.verdict)}</h2><p class="rows">{result.document}: {_text(DOCUMENTS[result.document])} · '
        f'{" ".join(result.rows)}</p>{reason}<div class="about">{paragraphs}</div>{entries}{_trouble_html(result)}'
        f'<p class="facts">{_text(_facts_line(result))}</p></article>'
    )  # fmt: skip


def _paragraph(text: str) -> str:
    # Indented paragraphs of a docstring are drawings or lists in columns.
    if all(line.startswith("    ") for line in text.splitlines()):
        terms = [_TERM.fullmatch(line) for line in text.splitlines()]
        if all(terms):
            rows = "".join(f"<tr><th>{_text(term[1])}<td>{_text(term[2])}" for term in terms if term)
            return f'<table class="terms">{rows}</table>'
        return f"<pre>{_text(dedent(text))}</pre>"
    return f"<p>{_text(' '.join(text.split()))}</p>"


def _grouped_html(entries: Sequence[Entry], folder: Path) -> Iterator[str]:
    """Commands, checks and measurements that follow each other share a box."""
    boxes = {"command": ("<pre class=commands>", "</pre>"), "check": ("<ul class=checks>", "</ul>"),
             "measure": ("<dl class=measures>", "</dl>")}  # fmt: skip
    open_kind = ""
    for entry in entries:
        if open_kind != entry.kind:
            if open_kind in boxes:
                yield boxes[open_kind][1]
            if entry.kind in boxes:
                yield boxes[entry.kind][0]
            open_kind = entry.kind
        yield _entry_html(entry, folder)
    if open_kind in boxes:
        yield boxes[open_kind][1]


def _entry_html(entry: Entry, folder: Path) -> str:
    facts = entry.facts
    match entry.kind:
        case "step":
            why = f"<p>{_text(facts['why'])}</p>" if facts["why"] else ""
            return f"<h3>{_text(facts['title'])}</h3>{why}"
        case "say":
            return f"<p>{_text(facts['text'])}</p>"
        case "command":
            return f"<code>{_text(facts['line'])}</code>\n"
        case "output":
            return f'<pre class="output">{_text(facts["text"])}</pre>'
        case "check":
            return _check_html(facts)
        case "measure":
            note = f" <small>{_text(facts['note'])}</small>" if facts["note"] else ""
            value = quantity(facts["value"], facts["unit"])
            return f"<div><dt>{_text(facts['what'])}</dt><dd>{_text(value)}{note}</dd></div>"
        case "table":
            return _table_html(facts)
        case "figure":
            return _figure_html(facts, folder)


def _check_html(facts: dict[str, Any]) -> str:
    excuse = facts.get("excuse", "")
    look = f" <code>{_text(facts['look'])}</code>" if facts["look"] and not facts["holds"] else ""
    look = f" <span>{_text(excuse)}</span>" if excuse else look
    return (
        f'<li class="{"holds" if facts["holds"] else "excused" if excuse else "fails"}"><b>{_text(facts["what"])}</b> '
        f"<span>expected {_text(facts['expected'])}</span> <span>seen {_text(facts['seen'])}</span>{look}</li>"
    )


def _table_html(facts: dict[str, Any]) -> str:
    rows = facts["rows"]
    numeric = [all(_is_number(row[at]) for row in rows) for at in range(len(facts["headings"]))]
    cells = ['<td class="number">' if right else "<td>" for right in numeric]
    head = "".join(
        f"<th{' class=number' if right else ''}>{_text(heading)}</th>"
        for heading, right in zip(facts["headings"], numeric, strict=True)
    )
    body = "".join(
        "<tr>" + "".join(f"{cell}{_text(text)}</td>" for cell, text in zip(cells, row, strict=True)) + "</tr>"
        for row in rows
    )
    return (
        f'<div class="wide"><table><caption>{_text(facts["title"])}</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _is_number(text: str) -> bool:
    if ", " in text:  # a list
        return False
    return not text or text.partition(" ")[0].replace(",", "").replace(".", "", 1).lstrip("-").isdigit()


def _figure_html(facts: dict[str, Any], folder: Path) -> str:
    sources = {ground: _inline(folder / facts[ground]) for ground in ("light", "dark")}
    return (
        f'<figure><picture><source media="(prefers-color-scheme: dark)" srcset="{sources["dark"]}">'
        f'<img alt="{_text(facts["caption"])}" src="{sources["light"]}"></picture>'
        f"<figcaption>{_text(facts['caption'])}</figcaption></figure>"
    )


def _inline(picture: Path) -> str:
    if not picture.is_file():
        return ""
    return "data:image/svg+xml;base64," + base64.b64encode(picture.read_bytes()).decode()


def _trouble_html(result: LabResult) -> str:
    parts: list[str] = []
    if result.trouble:
        lines = "".join(f"<li>{label}: {_text(text)}</li>" for label, text in _trouble_lines(result))
        parts.append(f'<div class="trouble"><b>{_text(result.trouble.problem)}</b><ul>{lines}</ul>')
        if result.trouble.trace:
            parts.append(f"<pre>{_text(result.trouble.trace)}</pre>")
        parts.append("</div>")
    if result.logs:
        named = ", ".join(f"<code>{_text(result.name)}/{_text(file)}</code>" for file in result.logs.values())
        parts.append(f"<p>What the nodes logged meanwhile: {named}</p>")
    return "".join(parts)


def _text(value: object) -> str:
    return html.escape(str(value))

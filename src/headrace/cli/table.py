"""`headrace table`: tables that pipelines write, looked at without Spark."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.app import App, Trunk, cli, everywhere
from headrace.cli.output import counted, print_json, print_pairs, print_table, size
from headrace.cli.values import words

if TYPE_CHECKING:
    from headrace.pipeline.delta_log import Commit
    from headrace.pipeline.known_tables import KnownTable
    from headrace.pipeline.tables import Table

_WIDEST = 60


@cli.group(cls=Trunk)
@everywhere
def table() -> None:
    """Read the tables that pipelines write, without Spark.

    Delta and Parquet tables in local folders can be read at any time, also while a pipeline writes them.
    NAME is the last part of a table's path, its path, or the name of a pipeline that writes one table.
    """


def _open(app: App, name: str) -> tuple[KnownTable, Table]:
    from headrace.home import Home
    from headrace.pipeline.known_tables import find_table, open_known

    found = find_table(Home.find(app.home), name)
    return found, open_known(found)


@table.command("list")
@everywhere
@click.pass_obj
def list_(app: App) -> None:
    """List the tables of the pipelines in headrace.toml, written or not.

    \b
    headrace table list
    """
    from headrace.home import Home
    from headrace.pipeline.known_tables import known_tables

    home = Home.find(app.home)
    found, wrong = known_tables(home)
    listed = [_listed(known) for known in found]
    if app.json:
        print_json(listed)
    else:
        print_table(
            ("table", "pipeline", "holds", "kind", "rows", "bytes", "version", "path"),
            [
                (each["table"], each["pipeline"], each["holds"], each["kind"], _number(each["rows"]),
                 size(each["bytes"]), _number(each["version"]), _shown(each["path"], home.config_file.parent))
                for each in listed
            ],
        )  # fmt: skip
    for error in wrong:
        app.say(f"warning: left out: {error.problem}")
    if not found and not wrong:
        app.say('no table: a [pipelines.NAME] in headrace.toml with into = { delta = "FOLDER" } declares one')


def _shown(path: str, folder: Path) -> str:
    """As it is written in headrace.toml, if it lies beside it."""
    return path.removeprefix(f"{folder}/")


def _listed(known: KnownTable) -> dict[str, Any]:
    from headrace.errors import HeadraceError
    from headrace.pipeline.tables import read_table

    facts: dict[str, Any] = {"rows": None, "bytes": None, "version": None, "error": None}
    if known.is_written:
        try:
            opened = read_table(known.path)
            facts |= {"rows": opened.count(), "bytes": opened.size_bytes, "version": opened.version}
        except HeadraceError as error:
            facts["error"] = error.problem
    return {
        "table": known.name, "pipeline": known.pipeline, "holds": known.role, "kind": known.kind, "path": known.path,
        "written": known.is_written, **facts,
    }  # fmt: skip


@table.command()
@click.argument("name")
@click.option("--columns", "-c", callback=words, metavar="A,B", help="Only these columns, in this order.")
@click.option("--where", "-w", metavar="CONDITION", help='Only rows that match, as in "vehicle = 1776".')
@click.option("--order-by", metavar="COLUMN", help='Sort by this column, as in at or "at desc".')
@click.option("--limit", "-n", type=click.IntRange(1), default=10, show_default=True, help="Number of rows.")
@everywhere
@click.pass_obj
def head(
    app: App, name: str, columns: tuple[str, ...] | None, where: str | None, order_by: str | None, limit: int
) -> None:
    """Show the first rows.

    In the order in which they were written; no more of the table is read than is shown. With --order-by all rows are
    read, and the first of them are kept. A condition compares columns with values: = != < <= > >=, between A and B,
    in (A, B), like 'bus%', is null, is not null; joined by and, or, not and brackets. Texts and times stand in single
    quotes; a time without a zone is UTC, and so are all that are shown.

    \b
    headrace table head trips
    headrace table head breadcrumbs -c vehicle,at,speed -w "vehicle = 1776" --order-by "at desc" -n 5
    """
    from headrace.pipeline.tables import Query

    known, opened = _open(app, name)
    if not columns and known.role == "aggregate":
        # Partial results that later batches are added to; whoever wants them names them.
        columns = tuple(name for name in opened.schema.names if not name.startswith("_"))
    found = opened.head(Query(columns or (), where, order_by, limit))
    rows = list(_rows(found))
    if app.json:
        for row in rows:
            click.echo(json.dumps(row, ensure_ascii=False))
        return
    print_table(found.schema.names, [[_cell(value) for value in row.values()] for row in rows])
    if not rows:
        app.say("no row" + (" matches" if where else ": the table is empty"))


@table.command()
@click.argument("name")
@click.option("--where", "-w", metavar="CONDITION", help="Only rows that match, see `table head`.")
@everywhere
@click.pass_obj
def count(app: App, name: str, where: str | None) -> None:
    """Count the rows.

    Without a condition the count comes from the table's metadata; no rows are read.

    \b
    headrace table count breadcrumbs
    headrace table count breadcrumbs -w "speed is null"
    """
    known, opened = _open(app, name)
    rows = opened.count(where)
    if app.json:
        print_json({"table": known.name, "path": known.path, "version": opened.version, "rows": rows})
    else:
        click.echo(rows)


@table.command()
@click.argument("name")
@everywhere
@click.pass_obj
def schema(app: App, name: str) -> None:
    """Show the columns with their Spark types, and the size of the table.

    \b
    headrace table schema trips
    """
    known, opened = _open(app, name)
    if app.json:
        print_json({"table": known.name, "pipeline": known.pipeline, **opened.document()})
        return
    facts = {"table": known.name, "kind": opened.kind, "path": known.path}
    if opened.version is not None:
        facts["version"] = str(opened.version)
    rows = f"{opened.count():,} in {counted(opened.file_count, 'file')}, {size(opened.size_bytes)}"
    print_pairs({**facts, "rows": rows})
    click.echo()
    print_table(
        ("column", "type", "nullable", "partition"),
        [
            (column.name, column.type, "yes" if column.nullable else "no", "yes" if column.partition else "")
            for column in opened.columns
        ],
    )


@table.command()
@click.argument("name")
@click.option("--limit", "-n", type=click.IntRange(1), default=20, show_default=True, help="Number of versions.")
@everywhere
@click.pass_obj
def history(app: App, name: str, limit: int) -> None:
    """Show the history of the table, newest first: version, time (UTC), rows, and the pipeline's batch.

    A Parquet table has no versions; its batches are listed.

    \b
    headrace table history trips
    """
    _, opened = _open(app, name)
    commits = opened.history(limit)
    if app.json:
        for commit in commits:
            click.echo(json.dumps(_commit(commit), ensure_ascii=False))
        return
    print_table(
        ("version", "time", "operation", "added", "updated", "removed", "batch", "note"),
        [
            (_number(c.version), _moment(c.at_ms), c.operation, _number(c.rows_added), _number(c.rows_updated),
             _number(c.rows_removed), _number(c.batch), _cell(c.note))
            for c in commits
        ],
    )  # fmt: skip


def _commit(commit: Commit) -> dict[str, Any]:
    from dataclasses import asdict

    document = asdict(commit)
    del document["at_ms"]
    return {"version": document.pop("version"), "time": _moment(commit.at_ms), **document}


def _number(count: int | None) -> str:
    return "-" if count is None else f"{count:,}"


def _moment(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


# -- rows as JSON and as text ------------------------------------------------------------------------------------------


def _rows(found: Any) -> Any:
    """The rows with values that JSON can hold."""
    columns = [_plain_column(found.column(at)) for at in range(found.num_columns)]
    for values in zip(*columns, strict=True) if columns else ():
        yield dict(zip(found.schema.names, values, strict=True))


def _plain_column(column: Any) -> list[Any]:
    import pyarrow as pa

    if pa.types.is_timestamp(column.type):
        # By Arrow, because Python knows no year beyond 9999.
        return [_iso(text) for text in column.cast(pa.string()).to_pylist()]
    return [_plain(value) for value in column.to_pylist()]


def _iso(text: str | None) -> str | None:
    """`2020-09-10T06:00:00Z`, with a fraction only if there is one."""
    if text is None:
        return None
    whole, dot, fraction = text.replace(" ", "T").partition(".")
    zone = "Z" if fraction.endswith("Z") else ""
    fraction = fraction.rstrip("Z").rstrip("0")
    return f"{whole}{dot if fraction else ''}{fraction}{zone}"


def _plain(value: Any) -> Any:
    from decimal import Decimal

    from headrace.transport.records import text_or_base64

    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        if value and all(isinstance(pair, tuple) for pair in value):  # a map
            return {str(_plain(key)): _plain(inner) for key, inner in value}
        return [_plain(inner) for inner in value]
    if isinstance(value, bytes):
        return text_or_base64(value)
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
    if isinstance(value, Decimal) or (value is not None and not isinstance(value, str | int | float | bool)):
        return str(value)
    return value


def _cell(value: Any) -> str:
    """A value on one line of bounded width: what a table holds must not steer the terminal."""
    if value is None:
        return "-"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    widest = _WIDEST if sys.stdout.isatty() else 4 * _WIDEST
    return text if len(text) <= widest else f"{text[: widest - 1]}…"

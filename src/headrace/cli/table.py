"""`headrace table`: tables that pipelines write, read without Spark."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.app import App, Trunk, cli, everywhere
from headrace.cli.output import cell, print_json, print_pairs, print_table
from headrace.cli.values import words
from headrace.text import plural, size, thousands

if TYPE_CHECKING:
    from headrace.pipeline import KnownTable
    from headrace.tables import Commit, Table


@cli.group(cls=Trunk)
@everywhere
def table() -> None:
    """Read the tables that pipelines write, without Spark.

    Delta and Parquet tables in local folders can be read at any time, also while a pipeline writes them.
    NAME is the last part of a table's path, its path, or the name of a pipeline that writes one table.
    """


def _open(app: App, name: str) -> tuple[KnownTable, Table]:
    from headrace.home import Home
    from headrace.pipeline import find_table

    found = find_table(Home.find(app.home), name)
    return found, found.open()


@table.command("list")
@everywhere
@click.pass_obj
def list_(app: App) -> None:
    """List the tables of the pipelines in headrace.toml, written or not.

    \b
    headrace table list
    """
    from headrace.home import Home
    from headrace.pipeline import known_tables

    home = Home.find(app.home)
    found, wrong = known_tables(home)
    listed = [_listed(known) for known in found]
    if app.json:
        print_json(listed)
    else:
        print_table(
            ("table", "pipeline", "holds", "kind", "rows", "bytes", "version", "path"),
            [
                (each["table"], each["pipeline"], each["holds"], each["kind"], thousands(each["rows"]),
                 size(each["bytes"]), thousands(each["version"]), _shown(each["path"], home.config_file.parent))
                for each in listed
            ],
        )  # fmt: skip
    for error in wrong:
        app.say(f"warning: left out: {error.problem}")
    if not found and not wrong:
        app.say('no table: a [pipelines.NAME] in headrace.toml with into = { delta = "FOLDER" } declares one')


def _shown(path: str, folder: Path) -> str:
    """As in headrace.toml, if it is beside it."""
    return path.removeprefix(f"{folder}/")


def _listed(known: KnownTable) -> dict[str, Any]:
    from headrace.errors import HeadraceError
    from headrace.tables import read_table

    facts: dict[str, object] = {"rows": None, "bytes": None, "version": None, "error": None}
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
@click.option("--limit", "-n", type=click.IntRange(1), default=10, help="Number of rows.")
@everywhere
@click.pass_obj
def head(
    app: App, name: str, columns: tuple[str, ...] | None, where: str | None, order_by: str | None, limit: int
) -> None:
    """Show the first rows.

    In the order in which they were written; no more of the table is read than is shown. With --order-by all rows are
    read, and the first of them are kept. A condition is SQL, as behind where; `headrace sql` answers other questions.
    Texts and times stand in single quotes; a time without a zone is UTC, and so are all that are shown.

    \b
    headrace table head trips
    headrace table head breadcrumbs -c vehicle,at,speed -w "vehicle = 1776" --order-by "at desc" -n 5
    """
    from headrace.tables import Query, plain_rows

    known, opened = _open(app, name)
    if not columns and known.role == "aggregate":
        # Partial results for later batches are shown only if they are named.
        columns = tuple(name for name in opened.schema.names if not name.startswith("_"))
    found = opened.head(Query(columns or (), where, order_by, limit))
    rows = list(plain_rows(found))
    if app.json:
        for row in rows:
            click.echo(json.dumps(row, ensure_ascii=False))
        return
    print_table(found.schema.names, [[cell(value) for value in row.values()] for row in rows])
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
    rows = f"{opened.count():,} in {plural(opened.file_count, 'file')}, {size(opened.size_bytes)}"
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
@click.option("--limit", "-n", type=click.IntRange(1), default=20, help="Number of versions.")
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
            (thousands(c.version), _moment(c.at_ms), c.operation, thousands(c.rows_added), thousands(c.rows_updated),
             thousands(c.rows_removed), thousands(c.batch), cell(c.note))
            for c in commits
        ],
    )  # fmt: skip


def _commit(commit: Commit) -> dict[str, object]:
    from dataclasses import asdict

    document = asdict(commit)
    del document["at_ms"]
    return {"version": document.pop("version"), "time": _moment(commit.at_ms), **document}


def _moment(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

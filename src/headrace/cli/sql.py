"""`headrace sql`: SQL over tables and topics."""

from __future__ import annotations

import csv
import json
import sys
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from headrace.cli.app import App, any_kafka, cli, registry_option
from headrace.cli.output import cell, print_table
from headrace.cli.values import span
from headrace.errors import Failed, HeadraceError, UsageError

if TYPE_CHECKING:
    from headrace.query import Result
    from headrace.schemas import Registry

_MOST_SHOWN = 1000
_FORMATS = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".ndjson": "json", ".jsonl": "json"}


@cli.command()
@click.argument("query", required=False)
@click.option("--file", "file", type=click.Path(path_type=Path, dir_okay=False), help="Read the query from a file.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV with a heading.")
@click.option(
    "--output", "-o", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    help="Write the rows to a .parquet, .csv, .json or .ndjson file.",
)  # fmt: skip
@click.option("--timeout", callback=span, metavar="SPAN", help="End the query after this time, as in 30s.")
@registry_option
@any_kafka
@click.pass_obj
def sql(
    app: App, query: str | None, file: Path | None, as_csv: bool, output: Path | None, timeout: float | None
) -> None:
    """Query tables and topics with SQL, without Spark.

    A table is named as in `headrace table list`, a topic as topic.NAME. A topic has the columns topic, partition,
    offset, timestamp, key, value and headers, and the fields of its values if a pipeline of headrace.toml or the schema
    registry says how to decode them. DuckDB runs the query; it can only read. Names with other characters than letters,
    digits and underscores stand in double quotes, texts in single quotes. With - the query is read from standard input.

    \b
    headrace sql "select vehicle, count(*) from breadcrumbs group by vehicle"
    headrace sql "select key, value from topic.lines where partition = 0 limit 10"
    headrace sql "describe topic.breadcrumbs"
    headrace sql "select * from trips" -o trips.parquet
    """
    from headrace.query import sql as run
    from headrace.tables import Limits

    if as_csv and app.json:
        raise UsageError("--csv and --json exclude each other")
    write = _writer(output)
    text = _text(query, file)
    # Which home the Kafka belongs to does not matter to the tables.
    with run(text, app.foreign(), home=app.home, registry=_registry(app), limits=Limits(timeout_s=timeout)) as result:
        if write is not None:
            write(app, result)
        elif as_csv:
            _print_csv(result, sys.stdout)
        elif app.json:
            _print_json(result, sys.stdout)
        else:
            _print_table(app, result)
        for note in result.notes:
            app.say(f"warning: {note}")


def _text(query: str | None, file: Path | None) -> str:
    if (query is None) == (file is None):
        raise UsageError(
            "give one query", hint='headrace sql "select …", headrace sql --file FILE, or - for standard input'
        )
    if file is not None:
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{file} cannot be read", why=str(error)) from None
    return sys.stdin.read() if query == "-" else str(query)


def _registry(app: App) -> Registry | None:
    """The registry that is meant, if there is one: a query may not need it."""
    with suppress(HeadraceError):
        return app.registry()
    return None


# -- output ------------------------------------------------------------------------------------------------------------


def _print_table(app: App, result: Result) -> None:
    rows = list(islice(result.plain_rows(), _MOST_SHOWN + 1))
    shown = rows[:_MOST_SHOWN]
    if result.schema.names == ["explain_key", "explain_value"]:
        click.echo("\n".join(row["explain_value"] for row in shown))
        return
    print_table(result.schema.names, [[cell(value) for value in row.values()] for row in shown])
    if len(rows) > _MOST_SHOWN:
        app.say(f"the first {_MOST_SHOWN:,} rows are shown; --json, --csv and -o FILE give all of them")
    elif not rows:
        app.say("no row")


def _print_json(result: Result, out: IO[str]) -> int:
    return sum(out.write(json.dumps(row, ensure_ascii=False) + "\n") > 0 for row in result.plain_rows())


def _print_csv(result: Result, out: IO[str]) -> int:
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(result.schema.names)
    count = 0
    for row in result.plain_rows():
        writer.writerow([json.dumps(v, ensure_ascii=False) if isinstance(v, dict | list) else v for v in row.values()])
        count += 1
    return count


def _print_parquet(result: Result, path: Path) -> int:
    import pyarrow.parquet as pq

    count = 0
    with pq.ParquetWriter(path, result.schema) as writer:
        for batch in result.batches():
            writer.write_batch(batch)
            count += batch.num_rows
    return count


def _writer(path: Path | None) -> Any:
    """What writes the file; it appears under its name when it is whole."""
    if path is None:
        return None
    kind = _FORMATS.get(path.suffix.lower())
    if kind is None:
        raise UsageError(f"unknown kind of file: {path.name}", hint=f"a name that ends in {', '.join(_FORMATS)}")

    def write(app: App, result: Result) -> None:
        part = path.with_name(path.name + ".part")
        try:
            if kind == "parquet":
                count = _print_parquet(result, part)
            else:
                with part.open("w", encoding="utf-8", newline="") as out:
                    count = (_print_csv if kind == "csv" else _print_json)(result, out)
            part.replace(path)
        except OSError as error:
            raise Failed(f"{path} cannot be written", why=error.strerror or str(error)) from None
        finally:
            part.unlink(missing_ok=True)
        app.say(f"{count:,} rows to {path}")

    return write

"""`headrace sample`: example data of any size, to a file or to standard output."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import click

from headrace.cli.app import App, cli, everywhere
from headrace.cli.output import print_json
from headrace.errors import SetupError
from headrace.text import plural, size

if TYPE_CHECKING:
    from headrace.samples import Damage, Sample

F = TypeVar("F", bound=Callable[..., object])

_JSON_FORMATS = ("array", "pretty", "ndjson", "concatenated", "strings")


@cli.group()
def sample() -> None:
    """Make example data: buses, taxi rides, zones, customers, iris.

    All data are synthetic and resemble real files; the same seed gives the same bytes. Memory use is constant, whatever
    the number of records.
    """


def _rates(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[str, float]:
    found: dict[str, float] = {}
    for text in given:
        name, equals, rate = text.partition("=")
        try:
            found[name] = float(rate)
        except ValueError:
            equals = ""
        if not equals:
            raise click.BadParameter(f"{text!r} is not of the form KIND=RATE, like null=0.01")
    return found


def _made(*formats: str, records: int, of: str = "records") -> Callable[[F], F]:
    """The options that every sample has; `of`: what is counted, if not its own records."""
    counted = click.option("--records", "-n", type=click.IntRange(0), default=records, help="Number of records.")
    if of != "records":
        counted = click.option(f"--{of}", type=click.IntRange(0), default=records, help=f"Number of {of}.")
    options = (
        counted,
        click.option("--format", "layout", type=click.Choice(formats), default=formats[0],
                     help="Format of the file."),
        click.option("--output", "-o", type=click.Path(path_type=Path, dir_okay=False),
                     help="The file to write. [default: standard output]"),
        everywhere,
    )  # fmt: skip
    return _with(options)


def _damaged() -> Callable[[F], F]:
    """The options of a sample that can be damaged on purpose."""
    return _with((
        click.option("--bad", type=click.FloatRange(0, 1), default=0.0,
                     help="Share of damaged records, of every kind that leaves the file readable."),
        click.option("--damage", metavar="KIND=RATE", multiple=True, callback=_rates,
                     help="Share of records with one kind of damage, repeatable."),
        click.option("--truth", type=click.Path(path_type=Path, dir_okay=False),
                     help="Write the damage of each record to this file, one JSON object per line."),
    ))  # fmt: skip


_seed = click.option("--seed", type=int, default=7, help="Seed of the random numbers.")
_shape = click.option(
    "--shape",
    type=click.Choice(["2020", "2022"]),
    default="2020",
    help="14 fields, all strings, or the ten typed ones of later files.",
)


def _with(options: tuple[Callable[[F], F], ...]) -> Callable[[F], F]:
    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


@sample.command()
@_made(*_JSON_FORMATS, "csv", records=1000)
@_seed
@_shape
@click.option("--vehicles", type=click.IntRange(1), help="Number of buses. [default: one per 3,300 records]")
@_damaged()
@click.pass_obj
def breadcrumbs(app: App, /, layout: str, shape: str, damage: Mapping[str, float], bad: float, **given: Any) -> None:
    """Bus breadcrumbs: where each bus of a city was, every five seconds.

    Trips are stored hours out of order, as in real files. A day has 370,000 breadcrumbs (125 MB); more records
    fill more days.

    \b
    Kinds of damage, for --damage:
      not-json truncated invalid-utf8 null not-an-object duplicate wrong-type not-a-number
      negative-time missing-trip empty-trip outside-city empty-coordinates negative-speed
      bad-date far-future bad-direction (2020 only)
    """
    from headrace.samples import breadcrumbs as make

    options = {"records": given["records"], "seed": given["seed"], "vehicles": given["vehicles"]}
    made = make(**options, shape=int(shape), bad=bad, damage=damage, fits=layout)
    _write(app, made, layout, given["output"], given["truth"])


@sample.command()
@_made(*_JSON_FORMATS, "csv", records=1000, of="breadcrumbs")
@_seed
@_shape
@click.option("--vehicles", type=click.IntRange(1), help="Number of buses, as of the breadcrumbs.")
@click.pass_obj
def stops(app: App, /, layout: str, shape: str, output: Path | None, **given: Any) -> None:
    """Stop events of the same buses: route, direction and service of each trip.

    They match `headrace sample breadcrumbs` with the same seed and shape, and as many --records as here --breadcrumbs.
    One trip in 16 has no breadcrumbs; one in 20 has no stop events. Some vehicles have service keys beside W, S and U.

    \b
    headrace sample breadcrumbs --records 20000 -o day.json
    headrace sample stops --breadcrumbs 20000 -o stops.json
    """
    from headrace.samples import stops as make

    _write(app, make(**given, shape=int(shape)), layout, output)


@sample.command()
@_made("csv", "ndjson", "array", records=1000)
@_seed
@click.option(
    "--shape",
    type=click.Choice(["rides", "v1", "v2", "v3"]),
    default="rides",
    help="The monthly file's 18 columns, or records of a version of the Avro schema.",
)
@_damaged()
@click.pass_obj
def taxi(app: App, /, layout: str, shape: str, damage: Mapping[str, float], bad: float, **given: Any) -> None:
    """Taxi rides, with the oddities of real files.

    A distance of zero in 4 %, no passengers in 5 %, a refund in 0.2 %, a drop-off before the pick-up in 0.2 %.

    \b
    Kinds of damage, for --damage:
      not-json truncated invalid-utf8 null not-an-object duplicate wrong-type missing-vendor
      negative-distance unknown-payment huge-total
    """
    from headrace.samples import taxi as make

    made = make(given["records"], given["seed"], shape=shape, bad=bad, damage=damage, fits=layout)
    _write(app, made, layout, given["output"], given["truth"])


@sample.command()
@_made("csv", "ndjson", "array", records=260)
@_seed
@click.pass_obj
def zones(app: App, layout: str, records: int, seed: int, output: Path | None) -> None:
    """Taxi zones: number, borough, name and service zone, to look up the zones of rides.

    Rides begin and end in zones 1 to 263; the last three are not in the table unless you ask for more records.
    """
    from headrace.samples import zones as make

    _write(app, make(records, seed), layout, output)


@sample.command()
@_made("csv", "ndjson", "array", records=12_434)
@_seed
@click.pass_obj
def customers(app: App, layout: str, records: int, seed: int, output: Path | None) -> None:
    """Retail customers: nine columns, and no header row in the CSV file."""
    from headrace.samples import customers as make

    _write(app, make(records, seed), layout, output)


@sample.command()
@_made("ndjson", "array", records=1000)
@_seed
@click.pass_obj
def changes(app: App, layout: str, records: int, seed: int, output: Path | None) -> None:
    """Changes of customers, as Debezium reports them: late, repeated, out of order, with deletes."""
    from headrace.samples import changes as make

    _write(app, make(records, seed), layout, output)


@sample.command()
@_made("csv", "ndjson", "array", records=150)
@click.pass_obj
def iris(app: App, layout: str, records: int, output: Path | None) -> None:
    """The Iris table: 150 flowers of three classes (Fisher 1936)."""
    from headrace.samples import iris as make

    _write(app, make(records), layout, output)


def _write(app: App, made: Sample, layout: str, output: Path | None, truth: Path | None = None) -> None:
    began = time.monotonic()
    with ExitStack() as opened:
        file = opened.enter_context(_open(output)) if output else sys.stdout.buffer
        truths = opened.enter_context(_open(truth)) if truth else None

        def tell(damage: Damage) -> None:
            if truths:
                known = {name: value for name, value in asdict(damage).items() if value is not None}
                truths.write(json.dumps(known).encode() + b"\n")

        written = made.write(file, layout, tell)
    if app.json and output:
        print_json({"file": str(output), **asdict(written)})
    elif output:
        spent = max(time.monotonic() - began, 0.001)
        app.say(
            f"{plural(written.records, 'record')} in {output}: {size(written.size_bytes)}, "
            f"{written.records / spent:,.0f} records/s"
        )
        for kind, count in sorted(written.damaged.items()):
            app.say(f"  {kind}: {count:,}")


def _open(path: Path) -> BinaryIO:
    try:
        return path.open("wb", buffering=1 << 20)
    except OSError as error:
        raise SetupError(f"{path} cannot be written", why=error.strerror, hint="another file with -o") from error

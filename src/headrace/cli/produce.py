"""`headrace produce`: records from a file or a pipe into topics."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.app import App, any_kafka, cli, client_settings
from headrace.cli.codecs import codec_options, codecs
from headrace.cli.output import print_json, say
from headrace.cli.values import every, pairs, span, whole_range, words
from headrace.errors import Failed, HeadraceError, UsageError
from headrace.text import plural, size

if TYPE_CHECKING:
    from headrace.kafka import TransactionReport, TransactionResult
    from headrace.kafka.write import BadPiece, InputOptions, ProduceOptions, ProduceReport, Shaping

_PLACES_SHOWN = 20
_REASONS_SHOWN = 5
_NOT_IN_TRANSACTIONS = (
    "echo", "producers", "key_per_producer", "rate", "pause_ms", "pause_every", "flush", "replay", "failed_file",
)  # fmt: skip
_SHAPES = ["lines", "ndjson", "array", "concatenated", "strings", "csv", "csv-no-header"]


@cli.command()
@click.argument("topic")
@click.argument("file", default="-")
@click.option("--create", is_flag=True, help="Create the topic if it does not exist.")
@click.option("--partitions", type=int, help="Partitions of a topic that is created.")
@click.option("--replication", type=int, help="Replicas of a topic that is created.")
@click.option("--input", "shape", type=click.Choice(_SHAPES), help="How records lie in the file. [default: detected]")
@click.option("--columns", callback=words, metavar="A,B,…", help="Names of a CSV file's columns.")
@click.option("--numbers", is_flag=True, help="CSV cells that are numbers become numbers.")
@click.option(
    "--on-bad",
    type=click.Choice(["stop", "skip", "set-aside"]),
    default="stop",
    help="What to do with input that cannot be parsed as a record.",
)
@click.option(
    "--skip",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="Leave out the first N records: an earlier run has sent them.",
)
@click.option("--key-field", metavar="FIELD", help="The key is this field (a.b for nested ones).")
@click.option("--key", metavar="TEXT", help="The key is the same for all records.")
@click.option("--random-key", callback=whole_range, metavar="1-5", help="The key is drawn from a range.")
@click.option("--key-per-producer", is_flag=True, help="The key is the number of the producer.")
@click.option("--header", "headers", multiple=True, callback=pairs, metavar="NAME=TEXT", help="A header, repeatable.")
@click.option("--partition", type=int, help="All records to this partition.")
@click.option(
    "--route",
    metavar="FIELD:VALUE=TOPIC/P,…",
    help="Topic and partition by a field's value, or by a function: FILE.py:FUNCTION.",
)
@click.option("--timestamp-field", metavar="FIELD", help="The record's time is this field.")
@click.option("--value-fields", callback=words, metavar="A,B,…", help="The value is a JSON array of these fields.")
@click.option(
    "--echo",
    callback=words,
    metavar="A,B,…",
    help="Print each record as it is sent: these fields of it, then the value, a line on standard output.",
)
@click.option("--null-value", metavar="TEXT", help="A value that is exactly this becomes null (a tombstone).")
@codec_options
@click.option("--acks", type=click.Choice(["0", "1", "all"]), default="all")
@click.option("--compression", type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]))
@click.option("--no-idempotence", is_flag=True, help="Let retries write a record twice.")
@click.option("--rate", type=float, metavar="R", help="At most R records a second.")
@click.option("--pause-ms", type=float, metavar="MS", help="Pause after each record.")
@click.option("--pause-every", callback=every, metavar="N:SPAN", help="Pause after every N records, as in 5:2s.")
@click.option("--flush", default="end", metavar="none|end|each|every:N", help="When to wait for the acknowledgements.")
@click.option(
    "--replay",
    type=float,
    metavar="SPEED",
    help="By the data's own times (--timestamp-field); 60: an hour in a minute.",
)
@click.option(
    "--producers", type=click.IntRange(1, 64), default=1, help="So many producers at once, each sends the whole file."
)
@click.option("--seed", type=int, help="Makes random keys and coins repeatable.")
@click.option("--transaction", type=click.IntRange(1), metavar="N", help="Send in transactions of N records.")
@click.option("--wait", callback=span, metavar="SPAN", help="How long a transaction stays open, as in 2s.")
@click.option(
    "--commit-probability",
    type=float,
    default=1.0,
    help="Probability that a transaction is committed instead of aborted.",
)
@click.option("--topics", callback=words, metavar="A,B", help="A transaction spans these topics.")
@click.option("--per-topic", type=click.IntRange(1), default=2, help="Records of each of --topics.")
@click.option("--transactional-id", metavar="ID", help="[default: a new one]")
@click.option(
    "--failed",
    "failed_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Where undelivered records are kept. [default: TOPIC.failed.ndjson]",
)
@client_settings
@any_kafka
@click.pass_obj
def produce(app: App, /, topic: str, file: str, **flags: Any) -> None:
    """Send the records of FILE (or of standard input) to TOPIC.

    Lines, NDJSON, a JSON array of any size, objects without separators, an array of JSON strings, CSV: the shape is
    detected and said. At the end: what was acknowledged, what failed, first and last offset of each partition. A record
    that could not be delivered is kept in a file with its reason, and the exit code is 1.

    \b
    headrace produce breadcrumbs day.json --key-field VEHICLE_ID
    echo hello | headrace produce greetings --create
    headrace produce rides rides.csv --value avro:ride.avsc --key-codec avro:ride_key.avsc
    headrace produce rides rides.csv --random-key 1-5 --seed 7 --rate 100
    headrace produce iris iris.csv --numbers --value-fields sepal_length,sepal_width --echo class \\
        --route class:virginica=virginicasetosa/0,setosa=virginicasetosa/1,versicolor=versicolor/0+1
    headrace produce a day.json --transaction 4 --wait 2s --commit-probability 0.5 --seed 7
    headrace produce rides rides.csv --skip 499      # go on where an earlier run has stopped
    """  # fmt: skip
    # Whoever ends us with `kill` or `timeout` wants the account too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if file == "-" and sys.stdin.isatty():
        app.say("type records, one a line; Ctrl-D ends")
    if flags["create"]:
        _create(app, topic, file, flags)
    if flags["transaction"] or flags["topics"]:
        _in_transactions(app, topic, file, flags)
        return
    kept = _KeptFile(flags["failed_file"] or Path(f"{topic}.failed.ndjson"))
    aside = _KeptFile(Path(f"{Path(file).name if file != '-' else topic}.bad.ndjson"))
    with contextlib.ExitStack() as stack, kept, aside, _meter(app, file) as show:
        from headrace.kafka.write import produce as send

        options = _options(topic, flags, kept, aside, show)
        coded = codecs(app, stack, topic, flags, reading=False)
        report = send(
            app.connection(), topic, file, options=replace(options, shaping=replace(options.shaping, **coded))
        )
    _conclude(app, report, kept, aside)


def _create(app: App, topic: str, file: str, flags: dict[str, Any]) -> None:
    from headrace.kafka import Kafka, NewTopic
    from headrace.kafka.write import require_readable

    require_readable(file)
    with Kafka(app.connection()) as admin:
        for name in dict.fromkeys(flags["topics"] or [topic]):
            if admin.ensure_topic(NewTopic(name, flags["partitions"], flags["replication"])):
                app.say(f"created topic {name}")


def _options(
    topic: str, flags: dict[str, Any], kept: _KeptFile, aside: _KeptFile, show: Callable[[ProduceReport], None] | None
) -> ProduceOptions:
    from headrace.kafka.write import Pace, ProduceOptions

    flush_every, flush_at_end = _flush(flags["flush"])
    pace = Pace(
        rate=flags["rate"],
        pause_s=(flags["pause_ms"] or 0) / 1000,
        pause_every=flags["pause_every"],
        flush_every=flush_every,
        flush_at_end=flush_at_end,
        replay=flags["replay"],
    )
    return ProduceOptions(
        shaping=_shaping(topic, flags),
        pace=pace,
        input=_input(flags, aside),
        settings=_settings(flags),
        producers=flags["producers"],
        key_per_producer=flags["key_per_producer"],
        on_failed=kept.failed,
        on_echo=click.echo,
        on_progress=show,
    )


def _shaping(topic: str, flags: dict[str, Any]) -> Shaping:
    from headrace.kafka.write import Shaping, parse_route

    encoded = {name: flags[name].encode() if flags[name] is not None else None for name in ("key", "null_value")}
    return Shaping(
        key_field=flags["key_field"],
        key=encoded["key"],
        random_key=flags["random_key"],
        partition=flags["partition"],
        route=parse_route(flags["route"], topic) if flags["route"] else None,
        timestamp_field=flags["timestamp_field"],
        headers=tuple((name, value.encode()) for name, value in flags["headers"].items()),
        value_fields=flags["value_fields"] or (),
        null_value=encoded["null_value"],
        echo=flags["echo"],
        seed=flags["seed"],
    )


def _input(flags: dict[str, Any], aside: _KeptFile) -> InputOptions:
    from headrace.kafka.write import InputOptions, Shape

    return InputOptions(
        shape=Shape(flags["shape"]) if flags["shape"] else None,
        on_bad=flags["on_bad"],
        set_aside=aside.bad,
        columns=flags["columns"],
        numbers=flags["numbers"],
        skip=flags["skip"],
    )


def _flush(text: str) -> tuple[int | None, bool]:
    kind, _, count = text.partition(":")
    if kind == "every" and count.isdigit() and int(count) > 0:
        return int(count), True
    try:
        return {"none": (None, False), "end": (None, True), "each": (1, True)}[text]
    except KeyError:
        raise UsageError(f"invalid value for --flush: {text}", hint="none, end, each or every:15") from None


def _settings(flags: dict[str, Any]) -> dict[str, str | bool]:
    settings: dict[str, str | bool] = {"acks": flags["acks"]}
    if flags["no_idempotence"] or flags["acks"] != "all":
        settings["enable.idempotence"] = False  # it needs acks=all
    if flags["compression"]:
        settings["compression.type"] = flags["compression"]
    return {**settings, **flags["settings"]}


class _KeptFile:
    """An NDJSON file for records that must not be lost, neither these nor those of an earlier run.

    It exists only if there are any. Several producers write to it. A record that cannot be kept stops no other:
    what became of the rest is still reported, and `error` says that the file is not complete.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0
        self.error: Failed | None = None
        self._file: Any = None
        self._lock = threading.Lock()

    def __enter__(self) -> _KeptFile:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file:
            self._file.close()

    def failed(self, topic: str, record: Any) -> None:
        """A record that was not delivered."""
        from headrace.text import text_or_base64

        self._write({
            "topic": topic, "partition": record.partition, "key": text_or_base64(record.key),
            "value": text_or_base64(record.value), "reason": record.reason, "maybe_written": record.maybe_written,
        })  # fmt: skip

    def bad(self, piece: BadPiece) -> None:
        """Input that cannot be parsed as a record."""
        from headrace.text import text_or_base64

        self._write({"place": str(piece.place), "reason": piece.reason, "data": text_or_base64(piece.data)})

    def _write(self, document: dict[str, object]) -> None:
        line = json.dumps(document, ensure_ascii=False).encode() + b"\n"
        with self._lock:
            try:
                self._append(line)
            except OSError as error:
                self.error = Failed(
                    f"not all records could be written to {self.path}",
                    why=error.strerror or str(error),
                    hint="make room, or name another file with --failed, and send the input again",
                )
            else:
                self.count += 1

    def _append(self, line: bytes) -> None:
        if self._file is None:
            self._file = self.path.open("ab", buffering=0)
        if self._file.write(line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextlib.contextmanager
def _meter(app: App, file: str) -> Iterator[Callable[[ProduceReport], None] | None]:
    """A bar with records/s and MB/s, on a terminal only."""
    if app.quiet or app.json or not sys.stderr.isatty() or sys.stdin.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    path = Path(file)
    total = path.stat().st_size if file != "-" and path.is_file() and path.suffix != ".gz" else None
    columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)

        def show(report: ProduceReport) -> None:
            seconds = max(report.seconds, 0.001)
            text = (
                f"{report.acknowledged:,} acknowledged  {report.acknowledged / seconds:,.0f} records/s  "
                f"{report.bytes / seconds / 1e6:.1f} MB/s"
            )
            bar.update(
                task, completed=report.bytes, description=text + (f"  {report.failed} failed" if report.failed else "")
            )

        yield show


def _conclude(app: App, report: ProduceReport, kept: _KeptFile, aside: _KeptFile) -> None:
    if app.json:
        document = asdict(report) | {"error": str(report.error) if report.error else None, "complete": report.complete}
        print_json(document)
    elif not app.quiet and (report.read or not report.error):
        _summary(report)
    if kept.count:
        say(f"{plural(kept.count, 'undelivered record')} kept in {kept.path}, each with its reason")
    _say_bad(report.bad, aside)
    if report.error or report.interrupted:
        _say_how_to_go_on(report.position, input_is_bad=isinstance(report.error, Failed))
    for error in (report.error, kept.error, aside.error):
        if error:
            raise error
    if report.interrupted:
        raise KeyboardInterrupt
    if report.failed:
        raise click.exceptions.Exit(1)


def _say_how_to_go_on(position: int | None, *, input_is_bad: bool) -> None:
    """After a run that did not read its input to the end."""
    if position:
        mended = "correct the input, or add --on-bad skip, and " if input_is_bad else ""
        say(f"stopped after record {position:,} of the input; to resume without sending any record twice, "
            f"{mended}repeat the command with --skip {position}")  # fmt: skip


def _say_bad(count: int, aside: _KeptFile) -> None:
    if count:
        where = f"kept in {aside.path}" if aside.count else "skipped"
        say(f"not parsed as records and {where}: {plural(count, 'piece')} of the input")


def _summary(report: ProduceReport) -> None:
    seconds = max(report.seconds, 0.001)
    speed = f"{report.acknowledged / seconds:,.0f} records/s, {report.bytes / seconds / 1e6:.1f} MB/s"
    acknowledged = plural(report.acknowledged, "record")
    say(f"{acknowledged} acknowledged, {report.failed:,} failed, of {report.read:,} read as {report.shape}")
    for reason, count in list(report.reasons.items())[:_REASONS_SHOWN]:
        say(f"  {count:,} failed: {reason}")
    if len(report.reasons) > _REASONS_SHOWN:
        say(f"  and for {len(report.reasons) - _REASONS_SHOWN} other reasons")
    if report.maybe_written:
        say(f"  {report.maybe_written:,} of the failed records timed out after they were sent: they may have been "
            'written ("maybe_written" in the file), so sending them again may duplicate them')  # fmt: skip
    say(f"  {size(report.bytes)} in {report.seconds:.2f} s: {speed}")
    for topic, spans in report.partitions.items():
        for partition, span_ in spans.items():
            offsets = (
                f"offsets {span_.first_offset} to {span_.last_offset}"
                if span_.first_offset >= 0
                else "no offsets (acks=0)"
            )
            say(f"  {topic}/{partition}: {plural(span_.records, 'record')}, {offsets}")


def _in_transactions(app: App, topic: str, file: str, flags: dict[str, Any]) -> None:
    from headrace.kafka import TransactionPlan, produce_in_transactions

    _refuse_in_transactions(flags)
    plan = TransactionPlan(
        size=flags["transaction"] or 1,
        wait_s=flags["wait"] or 0.0,
        commit_probability=flags["commit_probability"],
        seed=flags["seed"],
        topics=flags["topics"] or (),
        per_topic=flags["per_topic"],
        transactional_id=flags["transactional_id"],
    )
    aside = _KeptFile(Path(f"{Path(file).name if file != '-' else topic}.bad.ndjson"))
    with contextlib.ExitStack() as stack, aside:
        # Several topics have several subjects: then the schema must be named by its own.
        coded = codecs(app, stack, None if plan.topics else topic, flags, reading=False)
        report = produce_in_transactions(
            app.connection(), topic, file, plan,
            shaping=replace(_shaping(topic, flags), **coded), input_options=_input(flags, aside),
            settings=_settings(flags), on_result=None if app.quiet or app.json else _say_transaction,
        )  # fmt: skip
    _say_bad(report.bad, aside)
    if report.error or report.interrupted:
        _say_how_to_go_on(report.position, input_is_bad=report.input_is_bad)
    _conclude_transactions(app, report)
    if aside.error:
        raise aside.error


def _refuse_in_transactions(flags: dict[str, object]) -> None:
    """An option without effect in a transaction is an error."""
    for name in _NOT_IN_TRANSACTIONS:
        if flags[name] not in (None, False, 1, "end"):
            option = "--" + name.removesuffix("_file").replace("_", "-")
            raise UsageError(f"{option} is not supported in transactions", hint="--wait holds each of them open")


def _say_transaction(result: TransactionResult) -> None:
    shown = [f"{topic}/{partition}@{offset}" for topic, partition, offset in result.offsets[:_PLACES_SHOWN]]
    more = len(result.offsets) - len(shown)
    places = ", ".join(shown) + (f" and {more:,} more" if more else "")
    colour = {"committed": "green", "aborted": "yellow"}.get(result.outcome, "red")
    reason = f" ({result.reason})" if result.reason else ""
    outcome = click.style(result.outcome, fg=colour)
    say(f"transaction {result.number}: {outcome}, {result.records} records {places}{reason}")


def _conclude_transactions(app: App, report: TransactionReport) -> None:
    outcomes = {name: report.records(name) for name in ("committed", "aborted", "failed", "fenced", "unknown")}
    if app.json:
        print_json({
            "transactional_id": report.transactional_id, "seconds": report.seconds, "records": outcomes,
            "bad": report.bad, "position": report.position,
            "transactions": [asdict(result) for result in report.transactions],
        })  # fmt: skip
    else:
        counted = ", ".join(f"{count} records {name}" for name, count in outcomes.items() if count) or "no records"
        app.say(f"{len(report.transactions)} transactions: {counted}")
    if report.error:
        raise report.error
    if report.interrupted:
        raise KeyboardInterrupt
    if outcomes["failed"]:
        reasons = [result.reason for result in report.transactions if result.outcome == "failed"]
        raise Failed(f"{outcomes['failed']} records could not be committed", why=reasons[0])
    if outcomes["unknown"]:
        raise HeadraceError(
            f"the outcome of {outcomes['unknown']} records is unknown",
            why="the coordinator did not answer whether it committed them",
            hint="read the topic with --isolation committed to see",
        )

"""`headrace consume`: records out of topics, to the screen, a pipe or a file."""

from __future__ import annotations

import fcntl
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, Protocol

import click

from headrace.cli.app import App, any_kafka, cli, client_settings
from headrace.cli.codecs import codec_options, codecs
from headrace.cli.output import say
from headrace.cli.values import pairs, parsed
from headrace.errors import Failed, UsageError
from headrace.text import plural, size

if TYPE_CHECKING:
    from types import FrameType

    from headrace.kafka.read import Batch, ConsumeOptions, ConsumeReport, OwnershipEvent, Reading, Writer

_DAMAGED_SHOWN = 5
_BY_SUFFIX = {
    ".parquet": "parquet", ".csv": "csv", ".json": "json", ".ndjson": "json", ".jsonl": "json",
    "": "values", ".txt": "values", ".text": "values", ".log": "values", ".out": "values",
}  # fmt: skip


@cli.command()
@click.argument("topics", nargs=-1, required=True)
@click.option("--group", metavar="G", help="Consumer group to read as; its offsets are committed.")
@click.option("--members", type=click.IntRange(1, 64), default=1, help="Number of group members to run.")
@click.option(
    "--from",
    "start",
    metavar="WHERE",
    help="Where to start: beginning, end, committed, an OFFSET, a TIME (2026-05-01T12:00 or -15min). "
    "[default: committed with a group, else beginning]",
)
@click.option(
    "--until",
    metavar="WHEN",
    help="When to stop: end (the end as of now), idle:10s, count:N, or a TIME. [default: end]",
)
@click.option("-f", "--follow", is_flag=True, help="Keep reading new records until Ctrl-C.")
@click.option("--partition", "partitions", type=int, multiple=True, help="Only this partition, repeatable.")
@click.option("--key", "keys", multiple=True, help="Only records with this key, repeatable.")
@click.option(
    "--header", "headers", multiple=True, callback=pairs, metavar="NAME=TEXT", help="Only records with this header."
)
@click.option("--contains", multiple=True, metavar="TEXT", help="Only records whose value contains this.")
@click.option(
    "--isolation",
    type=click.Choice(["committed", "uncommitted"]),
    default="committed",
    help="Hide or show records of open and aborted transactions.",
)
@click.option(
    "--protocol",
    type=click.Choice(["classic", "consumer"]),
    default="classic",
    help="Group protocol; consumer is the new one (KIP-848).",
)
@click.option(
    "--as",
    "form",
    type=click.Choice(["table", "values", "json", "csv", "parquet"]),
    help="[default: table on a terminal, values in a pipe; -o: by the suffix, values for .txt, .log or none]",
)
@click.option(
    "--format",
    "pattern",
    metavar="PATTERN",
    help=r"As in '%t/%p@%o %k=%v\n': topic, partition, offset, key, value; %h headers, %T time, %m member.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write to a file; with a group, append to it.",
)
@codec_options
@click.option(
    "--on-bad",
    type=click.Choice(["stop", "skip"]),
    default="stop",
    help="What to do with a batch whose bytes are damaged.",
)
@click.option("--check-order", metavar="FIELD", help="Check that this field ascends within each key.")
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    metavar="FILE.png",
    help="At the end, draw a scatter plot of two numbers.",
)
@click.option(
    "--plot-x",
    default="0",
    metavar="FIELD[=LABEL]",
    help="Field of the value for the x axis; a number is an index into an array.",
)
@click.option("--plot-y", default="1", metavar="FIELD[=LABEL]", help="Field of the value for the y axis.")
@click.option(
    "--plot-series",
    "plot_series",
    multiple=True,
    metavar="NAME:COLOUR=TOPIC/P",
    help="Records to draw in one colour, repeatable. [default: a colour for each topic]",
)
@client_settings
@any_kafka
@click.pass_obj
def consume(app: App, /, topics: tuple[str, ...], **flags: object) -> None:
    """Read records of one or more topics.

    Without a group it reads everything and commits nothing. With a group it starts at the committed offsets and
    commits after it has written the records out, so a killed consumer resumes without loss.

    \b
    headrace consume breadcrumbs                               read everything
    headrace consume breadcrumbs -f --from end                 read new records only
    headrace consume a b --group mine --members 3              a group of three
    headrace consume breadcrumbs --key 1 --key 3 --json | jq .value
    headrace consume rides --value registry --json | jq .value.total_amount
    headrace consume breadcrumbs --from -15min -o recent.parquet
    headrace consume virginicasetosa versicolor --until idle:10s --plot iris.png \\
        --plot-series virginica:red=virginicasetosa/0 --plot-series setosa:blue=virginicasetosa/1 \\
        --plot-series versicolor:green=versicolor
    """  # fmt: skip
    from headrace.kafka import Kafka
    from headrace.kafka.read import reading

    # Whoever ends us with `kill` or `timeout` wants the offsets committed and the file whole too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    connection = app.connection()
    with Kafka(connection) as admin:
        admin.require_topics(topics)  # before a file is opened for them, and emptied
    watchers = [watch(topics, flags) for flag, watch in _WATCHERS.items() if flags[flag]]
    with ExitStack() as stack:
        writer = _writer(app, topics, flags, stack)
        coded = codecs(app, stack, topics[0] if len(topics) == 1 else None, flags, reading=True)
        run = reading(connection, topics, options=replace(_options(app, flags, writer), **coded))
        interrupted = _read(app, run, writer, watchers)
    for watcher in watchers:
        watcher.conclude(app)
    if interrupted:
        raise KeyboardInterrupt
    if run.report.undecodable:
        raise click.exceptions.Exit(1)


def _read(app: App, run: Reading, writer: Writer, watchers: Sequence[_Watcher]) -> bool:
    """All that was read is written, and said; True if Ctrl-C came before the end."""
    interrupted, closed = _end_between_batches(run), False
    try:
        with closing(run.batches()) as batches:
            for batch in batches:
                for watcher in watchers:  # first, so that whatever was written counts, also if Ctrl-C comes now
                    watcher.see(batch)
                writer.write(batch)
    except KeyboardInterrupt:
        interrupted.set()
    except BrokenPipeError:
        # How much of the last batch the reader took before it closed the pipe is not known to us.
        closed = True
        app.say("stopped: the reader closed the pipe; the batch that was being written does not count as processed")
        raise
    finally:
        if not writer.whole_at_close:
            writer.close()
        if not (app.quiet or (closed and not run.report.read)):
            _summary(run.report, run.options.members)
    return interrupted.is_set()


def _say_ownership(app: App, group: str, members: int, *, joins: bool) -> Callable[[OwnershipEvent], None]:
    """A consumer that waits for records says that it has joined, and what it was given; chosen partitions it takes."""
    verbs = {"assigned": "is assigned" if joins else "takes", "revoked": "gives up", "lost": "has lost"}
    joined: set[int] = set()

    def show(event: OwnershipEvent) -> None:
        places = ", ".join(f"{topic}/{partition}" for topic, partition in sorted(event.places)) or "no partition"
        who = f"member {event.member}" if members > 1 else "this member"
        if joins and event.member not in joined:
            joined.add(event.member)
            app.say(f"· {who} has joined group {group}")
        if event.places or event.what == "assigned":  # a spare member has nothing to give up
            app.say(f"· {who} {verbs[event.what]} {places}")

    return show


def _end_between_batches(run: Reading) -> threading.Event:
    """Ctrl-C and `kill` end the reading when the batch in hand is written and counted, and set what is returned.

    In the middle of one, a record could be in the file and neither counted nor committed. The second Ctrl-C ends it at
    once: whoever reads from us may have stopped reading.
    """
    interrupted = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        if interrupted.is_set():
            signal.default_int_handler(number, frame)
        interrupted.set()
        run.stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    return interrupted


def _options(app: App, flags: dict[str, Any], writer: Writer) -> ConsumeOptions:
    from headrace.kafka import Start, Until
    from headrace.kafka.read import ConsumeOptions, Filter

    if flags["follow"] and flags["until"]:
        raise UsageError("--follow and --until contradict each other")
    until = Until("never") if flags["follow"] else parsed("--until", Until.parse, flags["until"] or "end")
    waits = flags["group"] and until.kind != "end"
    return ConsumeOptions(
        group=flags["group"],
        start=parsed("--from", Start.parse, flags["start"]) if flags["start"] else None,
        until=until,
        partitions=flags["partitions"],
        filter=Filter(
            keys=frozenset(key.encode() for key in flags["keys"]),
            headers={name: value.encode() for name, value in flags["headers"].items()},
            contains=tuple(text.encode() for text in flags["contains"]),
        ),
        isolation=flags["isolation"],
        protocol=flags["protocol"],
        members=flags["members"],
        settings=flags["settings"],
        on_bad=flags["on_bad"],
        on_finish=writer.close if writer.whole_at_close else None,
        on_ownership=_say_ownership(app, flags["group"], flags["members"], joins=not flags["partitions"])
        if waits
        else None,
    )


def _form(app: App, flags: dict[str, Any]) -> str:
    """What the output looks like: by the flags, the suffix of the file, or where standard output leads."""
    path: Path | None = flags["output"]
    if flags["form"] or app.json:
        return flags["form"] or "json"
    if path is None:
        return "table" if sys.stdout.isatty() else "values"
    form = _BY_SUFFIX.get(path.suffix)
    if form is None and path.is_char_device():
        return "values"
    if form is None and not flags["pattern"]:
        raise UsageError(
            f"unknown format: {path.suffix}",
            why=f"known suffixes are {' '.join(filter(None, _BY_SUFFIX))}",
            hint=f"--as values, json, csv or parquet says what to write to {path.name}",
        )
    return form or "values"


def _writer(app: App, topics: Sequence[str], flags: dict[str, Any], stack: ExitStack) -> Writer:
    from headrace.kafka.read import (
        CSV_HEADING,
        ParquetWriter,
        StreamWriter,
        encode_csv,
        encode_ndjson,
        end_with_a_whole_line,
        format_encoder,
        table,
        values_encoder,
    )

    path: Path | None = flags["output"]
    form = _form(app, flags)
    if form == "parquet":
        if path is None:
            raise UsageError("Parquet cannot be written to the screen", hint="-o FILE.parquet")
        if flags["group"] and path.exists():
            raise UsageError(
                f"{path} exists already",
                why="the group continues after the records in it, and a Parquet file cannot be appended to",
                hint="name another file",
            )
        return ParquetWriter(path)
    # A group goes on where it stands, and so does its file: what was written once is not read again.
    if path and flags["group"] and path.is_file() and not flags["pattern"]:
        torn = end_with_a_whole_line(path)
        if torn:
            say(f"note: {path} ended in an incomplete line: its {plural(torn, 'byte')} went to {path.name}.torn")
    stream = stack.enter_context(_open(path, "ab" if flags["group"] else "wb")) if path else sys.stdout.buffer
    if flags["pattern"]:
        return StreamWriter(stream, format_encoder(flags["pattern"]))
    if form == "table":
        heading, encode = table(shutil.get_terminal_size((120, 24)).columns, topics)
        return StreamWriter(stream, encode, heading=heading)
    if form == "csv":
        begun = path is not None and stream.tell() > 0
        return StreamWriter(stream, encode_csv, heading=b"" if begun else CSV_HEADING)
    return StreamWriter(stream, encode_ndjson if form == "json" else values_encoder())


def _open(path: Path, mode: Literal["ab", "wb"]) -> BinaryIO:
    try:
        # Unbuffered: the writer writes whole batches, and nothing may linger that could not be written.
        stream = path.open(mode, buffering=0)
    except OSError as error:
        raise UsageError(f"{path} cannot be written", why=error.strerror) from None
    with suppress(OSError):  # not every file can be locked; this one tells others that its end is being written
        fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return stream


def _summary(report: ConsumeReport, members: int) -> None:
    speed = f"{size(report.bytes)}, {report.seconds_to_last:.2f} s, {report.records_per_second:,.0f} records/s"
    waited = report.seconds - report.seconds_to_last
    then = f", then {waited:.1f} s without any" if waited >= 1 else ""
    about = f"{speed}{then}" if report.read else f"{report.seconds:.2f} s"
    say(f"processed a total of {plural(report.read, 'record')} ({about})")
    if report.matched != report.read:
        say(f"  {report.matched:,} of them matched")
    for (member, topic, partition), span in sorted(report.spans.items()):
        who = f"member {member}: " if members > 1 else ""
        offsets = f"offsets {span.first_offset} to {span.last_offset}"
        say(f"  {who}{topic}/{partition}: {plural(span.records, 'record')}, {offsets}")
    idle = [m for m in range(1, members + 1) if not any(key[0] == m for key in report.spans)]
    if idle and members > 1:
        say(f"  without records: member {', '.join(map(str, idle))}")
    if report.undecodable:
        say(f"  not decoded: {plural(report.undecodable, 'record')}")
        for sample in report.undecodable_samples:
            say(f"    {sample}")
    if report.damaged:
        lost = plural(sum(batch.records for batch in report.damaged), "record")
        say(f"  left out: {lost} in {len(report.damaged):,} damaged batch{'es' * (len(report.damaged) > 1)}")
        for batch in report.damaged[:_DAMAGED_SHOWN]:
            say(f"    {batch}: {batch.reason}")
    for note in report.notes:
        say(f"  note: {note}")


class _Watcher(Protocol):
    """Sees what was written, and has something to say when the reading is over."""

    def see(self, batch: Batch) -> None: ...

    def conclude(self, app: App) -> None: ...


class _OrderWatcher:
    """`--check-order FIELD`."""

    def __init__(self, _: tuple[str, ...], flags: dict[str, Any]) -> None:
        from headrace.kafka.read import OrderCheck

        self._check = OrderCheck(flags["check_order"])
        self.see = self._check.see

    def conclude(self, app: App) -> None:
        check = self._check
        if check.violations:
            raise Failed(
                f"{check.name} does not ascend within its key {check.violations} times of {check.checked}",
                why=check.first,
            )
        app.say(f"{check.name} ascends within each key: {check.checked:,} records checked")


class _PlotWatcher:
    """`--plot FILE`."""

    def __init__(self, topics: tuple[str, ...], flags: dict[str, Any]) -> None:
        from headrace.kafka.read import Scatter, Series

        (x, x_label), (y, y_label) = (_field_and_label(flags[name]) for name in ("plot_x", "plot_y"))
        series = [Series.parse(text) for text in flags["plot_series"] or dict.fromkeys(topics)]
        strange = [one.topic for one in series if one.topic not in topics]
        if strange:
            raise UsageError(
                f"a series names topic {strange[0]}, which is not read", why=f"read are {', '.join(topics)}"
            )
        self._path: Path = flags["plot"]
        self._scatter = Scatter(x, y, series, labels=(x_label, y_label))
        self._scatter.require_drawable(self._path)
        self.see = self._scatter.see

    def conclude(self, app: App) -> None:
        scatter = self._scatter
        scatter.save(self._path)
        counts = ", ".join(f"{name} {count:,}" for name, count in scatter.counts.items())
        app.say(f"plot: {self._path} ({counts})")
        for words in scatter.left_out:
            app.say(f"  left out: {words}")


def _field_and_label(text: str) -> tuple[str, str]:
    name, _, label = text.partition("=")
    return name, label or name


_WATCHERS: dict[str, Callable[[tuple[str, ...], dict[str, object]], _Watcher]] = {
    "check_order": _OrderWatcher,
    "plot": _PlotWatcher,
}

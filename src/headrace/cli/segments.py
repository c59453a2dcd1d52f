"""`headrace topic segments`: what lies on disk of a topic, read from the brokers' own files."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.app import App, everywhere
from headrace.cli.output import print_json, print_table
from headrace.cli.topic import topic
from headrace.errors import Failed, NotFound, UsageError
from headrace.text import short, size

if TYPE_CHECKING:
    from headrace.cluster import Segment
    from headrace.kafka import BatchHeader, Topic

_SHOWN = 60


@topic.command()
@click.argument("name")
@click.option("--partition", type=int, multiple=True, help="Only this partition, repeatable.")
@click.option("--broker", type=int, help="The replica of this broker. [default: the leader's]")
@click.option(
    "--batches", "what", flag_value="batches", help="Show every batch: offsets, codec, producer, bytes per record."
)
@click.option("--records", "what", flag_value="records", help="Show every record, control records too.")
@click.option("--offset", type=int, help="Only the batch with this offset, found through the index.")
@everywhere
@click.pass_obj
def segments(app: App, /, name: str, what: str | None, **wanted: Any) -> None:
    """Show the segments of a topic: its files on this machine.

    Batches are stored and compressed as the producer sent them, so bytes per record are an average of the batch.

    \b
    headrace topic segments breadcrumbs
    headrace topic segments breadcrumbs --partition 0 --batches
    headrace topic segments breadcrumbs --partition 0 --offset 5000 --records
    """
    found = list(_segments(app, name, wanted))
    if what == "records":
        _show_records(app, found, wanted["offset"])
    elif what == "batches" or wanted["offset"] is not None:
        _show_batches(app, found, wanted["offset"])
    else:
        _show_segments(app, name, found)


def _segments(app: App, name: str, wanted: dict[str, Any]) -> Iterator[tuple[int, Segment]]:
    """The segments of each wanted partition, on the wanted broker or on its leader."""
    if app.bootstrap or app.properties:
        raise UsageError("the files of a foreign Kafka cannot be seen from here", hint="leave out --bootstrap and -F")
    found = _topic(app, name)
    stored = app.cluster().segments(name)
    has = [p.partition for p in found.partitions]
    for number in wanted["partition"]:
        if number not in has:
            raise NotFound(f"{name} has no partition {number}", why=f"it has {len(has)}: 0 to {len(has) - 1}")
    for partition in found.partitions:
        broker = wanted["broker"] if wanted["broker"] is not None else partition.leader
        if wanted["partition"] and partition.partition not in wanted["partition"]:
            continue
        if broker not in partition.replicas:
            raise NotFound(
                f"broker {broker} has no replica of {name}/{partition.partition}",
                why=f"its replicas are {', '.join(map(str, partition.replicas))}",
            )
        yield from ((partition.partition, segment) for segment in stored.get((broker, partition.partition), ()))


def _topic(app: App, name: str) -> Topic:
    from headrace.kafka import Kafka

    with Kafka(app.connection()) as admin:
        return admin.topic(name)


def _show_segments(app: App, name: str, found: list[tuple[int, Segment]]) -> None:
    leaving = _removals(app, name, found)
    rows: list[dict[str, Any]] = []
    for number, segment in found:
        batches = list(segment.batches())
        records = sum(batch.records for batch in batches)
        rows.append({
            "partition": number,
            "segment": segment.log.name,
            "base_offset": segment.base_offset,
            "next_offset": segment.next_offset,
            "bytes": segment.size_bytes,
            "batches": len(batches),
            "records": records,
            "codecs": sorted({batch.codec for batch in batches}),
            "bytes_per_record": round(segment.size_bytes / records, 1) if records else None,
            "index_entries": len(segment.index()),
            "time_index_entries": len(segment.time_index()),
            "aborted_transactions": len(segment.aborted()),
            "youngest": segment.largest_timestamp_ms,
            "removed_by": leaving.get(segment.log, (None, None))[0],
            "removed_from": leaving.get(segment.log, (None, None))[1],
            "file": str(segment.log),
        })  # fmt: skip
    if app.json:
        for row in rows:
            print_json(row)
        return
    print_table(
        ["partition", "segment", "next", "bytes", "batches", "records", "codec", "bytes/record", "youngest", "removed"],
        [(r["partition"], r["segment"], r["next_offset"], size(r["bytes"]), r["batches"], r["records"],
          ",".join(r["codecs"]), r["bytes_per_record"], _moment(r["youngest"]), _when(r)) for r in rows],
    )  # fmt: skip


def _removals(app: App, name: str, found: list[tuple[int, Segment]]) -> dict[Path, tuple[str, int | None]]:
    from headrace.cluster import removals
    from headrace.kafka import Kafka

    with Kafka(app.connection()) as admin:
        configs = admin.topic_configs(name)
    if "delete" not in (configs["cleanup.policy"].value or "").split(","):
        return {}
    limits = [int(configs[key].value or -1) for key in ("retention.ms", "retention.bytes")]
    by_partition: dict[int, list[Segment]] = {}
    for number, segment in found:
        by_partition.setdefault(number, []).append(segment)
    return {
        removal.segment.log: (removal.by, removal.at_ms)
        for of_one in by_partition.values()
        for removal in removals(of_one, limits[0], limits[1])
    }


def _when(row: dict[str, Any]) -> str:
    if row["removed_by"] is None:
        return "-"
    return "soon, by size" if row["removed_from"] is None else f"from {_moment(row['removed_from'])}"


def _moment(milliseconds: int | None) -> str:
    if milliseconds is None or milliseconds < 0:
        return "-"
    try:
        return datetime.datetime.fromtimestamp(milliseconds / 1000).isoformat(sep=" ", timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return str(milliseconds)


def _batches(found: list[tuple[int, Segment]], offset: int | None) -> Iterator[tuple[int, Segment, BatchHeader]]:
    for number, segment in found:
        if offset is None:
            yield from ((number, segment, batch) for batch in segment.batches())
        elif segment.base_offset <= offset and (batch := segment.find(offset)):
            yield number, segment, batch


def _show_batches(app: App, found: list[tuple[int, Segment]], offset: int | None) -> None:
    rows = []
    for number, segment, batch in _batches(found, offset):
        plain = segment.plain_bytes(batch)
        ratio = round(plain / batch.size_bytes, 2) if plain else None
        if app.json:
            print_json({"partition": number, "segment": segment.log.name, **asdict(batch), "ratio": ratio})
            continue
        kind = "control" if batch.control else "transactional" if batch.transactional else ""
        producer = f"{batch.producer_id}/{batch.producer_epoch}" if batch.producer_id >= 0 else "-"
        cost = batch.bytes_per_record
        rows.append((number, batch.base_offset, batch.last_offset, batch.records, batch.position, batch.size_bytes,
                     batch.codec, f"{ratio:.2f}" if ratio else "?", f"{cost:.1f}" if cost else "-", producer,
                     batch.base_sequence, _moment(batch.max_timestamp_ms), kind))  # fmt: skip
    if not app.json:
        print_table(["partition", "first", "last", "records", "position", "bytes", "codec", "ratio", "bytes/record",
                     "producer", "sequence", "youngest", "kind"], rows)  # fmt: skip


def _show_records(app: App, found: list[tuple[int, Segment]], offset: int | None) -> None:
    from headrace.text import text_or_base64

    rows: list[tuple[object, ...]] = []
    unread = 0
    for number, segment, batch in _batches(found, offset):
        try:
            for record in segment.records(batch):
                if app.json:
                    shown = {**asdict(record), "key": text_or_base64(record.key), "value": text_or_base64(record.value)}
                    shown["headers"] = [{"name": n, "value": text_or_base64(v)} for n, v in record.headers]
                    print_json({"partition": number, **shown})
                else:
                    rows.append((number, record.offset, _moment(record.timestamp_ms), record.size_bytes,
                                 record.control or "", _text(record.key), _text(record.value)))  # fmt: skip
        except Failed as error:
            unread += 1
            span = f"{batch.base_offset} to {batch.last_offset}"
            if app.json:
                print_json({"partition": number, "offsets": span, "problem": error.problem, "why": error.why})
            else:
                rows.append((number, span, _moment(batch.max_timestamp_ms), batch.size_bytes, "", "", error.problem))
    if not app.json:
        print_table(["partition", "offset", "time", "bytes", "control", "key", "value"], rows)
    if unread:
        raise Failed(f"batches that could not be read: {unread}", why="the list says where and why")


def _text(data: bytes | None) -> str:
    if data is None:
        return "-"
    text = data.decode(errors="replace").replace("\n", " ")
    text = "".join(each if each.isprintable() else "·" for each in text)
    return short(text, _SHOWN)

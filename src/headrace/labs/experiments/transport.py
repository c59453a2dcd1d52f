"""Breadcrumbs of buses, record by record, from a file through Kafka.

A sample of 1,000 breadcrumbs is sent, one record for each object of a JSON array, and read back. Then a whole day of a
city: one JSON array on one line, some 125 MB. It does not fit comfortably into a program that parses the array at once;
here it is read as it comes, and the memory of the process that sends it is measured.

The address and the settings of the client stand in a librdkafka properties file, as a cloud provider hands it out.
"""

from __future__ import annotations

import contextlib
import json

import psutil

from headrace import Connection, consume, produce
from headrace.labs.expect import at_least, at_most
from headrace.labs.lab import Lab, Parameter
from headrace.labs.workbench import Workbench

_FIELDS = 14


def run(lab: Workbench) -> None:
    lab.step(f"A sample of {lab.p.records:,} breadcrumbs", "14 fields, all of them strings, some of them empty.")
    sample = lab.sample("breadcrumbs", lab.p.records, "bcsample.json")
    written = json.loads(sample.read_bytes())
    lab.check("objects in the file", lab.p.records, len(written))
    lab.check("fields of each", {_FIELDS}, {len(record) for record in written})

    lab.step("It is sent with the settings of a properties file")
    topic = lab.topic("breadcrumbs", partitions=6)
    address = "python -c 'import headrace; print(headrace.Cluster().bootstrap)'"
    lab.types(f"echo bootstrap.servers=$({address}) > librdkafka.config")
    lab.types("echo client.id=lab-transport >> librdkafka.config")
    lab.types("cat librdkafka.config")
    properties = lab.files / "librdkafka.config"
    lab.shows(f"headrace produce {topic} bcsample.json --key-field VEHICLE_ID -F librdkafka.config")
    where = Connection.from_file(properties)
    report = produce(where, topic, sample, key_field="VEHICLE_ID")
    lab.check("how the file was read", "array", report.shape)
    lab.check("records acknowledged", lab.p.records, report.acknowledged)

    lab.step("It is consumed", "Every record is the object that it was, and no other.")
    output = lab.types(f"headrace consume {topic} --json -F librdkafka.config", most=2)
    lab.check("lines that it printed", lab.p.records, len(output.out.splitlines()))
    records = list(consume(where, topic))
    lab.check("records read", lab.p.records, len(records))
    as_read = [json.loads(record.value or b"") for record in records]
    lab.check("they are the same objects", True, _sorted(written) == _sorted(as_read))
    lab.watch(topic, lab.p.records)
    _day(lab)


def _day(lab: Workbench) -> None:
    lab.step("A day of a city", "One array on one line, sent by a process of its own whose memory is watched.")
    day = lab.sample("breadcrumbs", lab.p.day_records, "day.json")
    lab.types("wc day.json")
    size_bytes = day.stat().st_size
    lab.measure("size of the file", size_bytes / 1e6, "MB")
    lab.check("lines in the file", 1, day.read_bytes().count(b"\n"))
    topic = lab.topic("day", partitions=6)
    lab.shows(f"headrace produce {topic} day.json --key-field VEHICLE_ID")
    code, out, used = _measured(lab, "produce", topic, day, "--key-field", "VEHICLE_ID", "--json")
    lab.check("exit code", 0, code, needed=True)
    output = json.loads(out)
    rate = output["acknowledged"] / output["seconds"]
    lab.measure("file to topic", rate, "records/s", f"{size_bytes / 1e6 / output['seconds']:.0f} MB/s, acks=all")
    lab.check("records acknowledged", lab.p.day_records, output["acknowledged"])
    lab.check("records failed", 0, output["failed"])
    note = "all of it parsed at once would take some ten times the file"
    lab.measure("most memory of the sending process", used, "MB", note)
    lab.check("memory stays far below the file's objects", at_most(400, "MB"), used)
    stored = lab.describe(topic)
    lab.check("records in the topic", lab.p.day_records, stored.offsets)
    lab.check("bytes in the topic", at_least(size_bytes * 0.2, "bytes"), stored.size_bytes)
    lab.watch(topic, lab.p.day_records)


def _sorted(objects: list[dict[str, str]]) -> list[str]:
    return sorted(json.dumps(each, sort_keys=True) for each in objects)


def _measured(lab: Workbench, *words: object) -> tuple[int, bytes, float]:
    """Exit code, output and most resident memory in MB of `headrace WORDS` as a process of its own.

    The memory is sampled: what the kernel reports at the end of a process (`ru_maxrss`) includes the process that
    started it, until the moment of exec.
    """
    output = lab.files / "output"
    child = lab.process(*words, output=output)
    watched, most = psutil.Process(child.pid), 0
    while child.poll() is None:
        with contextlib.suppress(psutil.Error):
            most = max(most, watched.memory_info().rss)
        lab.wait(0.02)
    return child.returncode, output.read_bytes(), most / 1e6


LAB = Lab(
    "S2",
    ("S2.A",),
    run,
    parameters=(
        Parameter("records", 1000, "breadcrumbs of the sample"),
        Parameter("day_records", 370_000, "breadcrumbs of a day", fast=20_000, least=1000, most=5_000_000),
    ),
)

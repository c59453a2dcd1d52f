"""Kafka Connect: a file becomes a topic becomes a file.

Two connectors run in a Connect worker beside the brokers. The source follows a file and makes a record of every line;
the sink writes every record of the topic to another file. What is in the topic between them is the line with its
schema: {"schema":{"type":"string","optional":false},"payload":"foo"}. A line that is appended to the source file while
all of this runs arrives in the sink file.
"""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path

from headrace import Connectors, consume
from headrace.labs.expect import at_most
from headrace.labs.lab import Lab, Needs, Parameter
from headrace.labs.workbench import Workbench, unused

_NAMES = ("local-file-source", "local-file-sink")


def run(lab: Workbench) -> None:
    source, sink = lab.files / "test.txt", lab.files / "test.sink.txt"
    worker = lab.cluster.connectors
    lab.step("A file with two lines")
    lab.types(r"printf 'foo\nbar\n' > test.txt")
    topic = lab.topic("connect-test")

    lab.step("Two connectors", "What the worker offers is asked first; wrong settings would be explained before that.")
    lab.shows("headrace up --with connect", "headrace connector plugins")
    plugins = {plugin.name.rsplit(".", 1)[1] for plugin in worker.plugins()}
    lab.check("the file connectors are there", {"FileStreamSourceConnector", "FileStreamSinkConnector"},
              plugins & {"FileStreamSourceConnector", "FileStreamSinkConnector"})  # fmt: skip
    configs = (
        {"connector.class": "FileStreamSource", "tasks.max": "1", "file": str(source), "topic": topic},
        {"connector.class": "FileStreamSink", "tasks.max": "1", "file": str(sink), "topics": topic},
    )
    names = [unused(name, worker.names()) for name in _NAMES]
    for name, config in zip(names, configs, strict=True):
        settings = " ".join(
            f"--set {key}={'$PWD/' + Path(value).name if key == 'file' else value}" for key, value in config.items()
        )
        lab.shows(f"headrace connector create {name} {settings}")
        lab.finally_(_remove, worker, name)
        worker.create(name, config)
    for name in names:
        lab.until(partial(_healthy, worker, name), 60, f"the start of {name}")
        lab.check(f"state of {name}", "RUNNING", worker.status(name).state, look=f"headrace connector status {name}")

    lab.step("What is in the topic", "The JSON converter writes each line with its schema.")
    lab.until(lambda: len(_values(lab, topic)) == 2, 60, "the arrival of two records")
    output = lab.types(f"headrace consume {topic}")
    lab.check("records", [_with_schema("foo"), _with_schema("bar")], output.out.splitlines())
    lab.until(lambda: _lines(sink) == ["foo", "bar"], 60, "the arrival in the sink file")
    lab.check("lines of the sink file", ["foo", "bar"], _lines(sink))

    lab.step("Another line, while it runs")
    took: list[float] = []
    for number in range(1, lab.p.lines + 1):
        line = f"Another line {number}"
        lab.types(f"echo '{line}' >> test.txt")
        began = time.monotonic()
        lab.until(partial(_ends_with, sink, line), 60, f"the arrival of {line!r}")
        took.append(time.monotonic() - began)
    lab.types("cat test.sink.txt")
    lab.measure("from file to file", sorted(took)[len(took) // 2], "s", "median")
    lab.check("lines of the sink file", 2 + lab.p.lines, len(_lines(sink)))
    lab.check("the slowest of them", at_most(30, "s"), max(took), timing=True)

    lab.step("Paused and resumed", "A paused source misses nothing: it remembers how far it has read.")
    lab.shows(f"headrace connector pause {names[0]}")
    worker.pause(names[0])
    lab.types("echo 'written while paused' >> test.txt")
    lab.wait(1)
    lab.check("in the sink while paused", False, "written while paused" in _lines(sink))
    lab.shows(f"headrace connector resume {names[0]}")
    worker.resume(names[0])
    lab.until(partial(_ends_with, sink, "written while paused"), 60, "the arrival after the resume")
    lab.check("every line once", len(_lines(sink)), len(set(_lines(sink))))


def _with_schema(line: str) -> str:
    return json.dumps({"schema": {"type": "string", "optional": False}, "payload": line}, separators=(",", ":"))


def _values(lab: Workbench, topic: str) -> list[str]:
    return [(record.value or b"").decode() for record in consume(lab.cluster, topic)]


def _lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else [""]


def _healthy(worker: Connectors, name: str) -> bool:
    return worker.status(name).healthy


def _ends_with(file: Path, line: str) -> bool:
    return _lines(file)[-1] == line


def _remove(worker: Connectors, name: str) -> None:
    if name in worker.names():
        worker.delete(name)


LAB = Lab(
    "S1",
    ("S1.4",),
    run,
    needs=Needs(services=("connect",)),
    parameters=(Parameter("lines", 5, "lines that are appended while it runs", fast=2, most=1000),),
)

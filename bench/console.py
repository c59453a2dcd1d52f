"""How long each page of the console takes, and what watching costs, with many topics.

    python -m bench.console [--topics 1000] [--rounds 5]

One broker, a topic in ten with a group that reads it. A page is timed in a real Chromium, from the address to its
content: a table with rows, or charts. CPU and memory are those of the console's process alone, while nobody looks and
while somebody does; the broker's are not counted.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
from confluent_kafka import TopicPartition
from tests.browser import driving

from bench.contest import spread
from headrace.cluster import Cluster
from headrace.kafka import Kafka, NewTopic
from headrace.kafka.client import connect
from headrace.kafka.write.producer import produce
from headrace.runtime.process import memory_bytes

_WATCHED_S = 30.0
_PAGES = {
    "/": ".tile .value",
    "/topics": ".grid tbody tr",
    "/topics/topic-0000": ".grid tbody tr",
    "/records/topic-0000": ".grid tbody tr",
    "/groups": ".grid tbody tr",
    "/brokers": ".grid tbody tr",
    "/timeline": "canvas, svg",
}


def _fill(kafka: Cluster, topics: int) -> None:
    names = [f"topic-{number:04}" for number in range(topics)]
    with Kafka(kafka) as admin:
        for at in range(0, topics, 100):
            admin.create_topics([NewTopic(name, 1, 1, {}) for name in names[at : at + 100]])
    produce(kafka, names[0], (f"record {number}" for number in range(5000)))
    for name in names[::10]:
        reader = connect(kafka).consumer({"group.id": f"group-of-{name}"})
        reader.commit(offsets=[TopicPartition(name, 0, 0)], asynchronous=False)
        reader.close()


def _watch(process: psutil.Process) -> float:
    """The share of a core that the process takes."""
    before, began = process.cpu_times(), time.monotonic()
    time.sleep(_WATCHED_S)
    after = process.cpu_times()
    return (after.user + after.system - before.user - before.system) / (time.monotonic() - began)


def _time_pages(window: driving.Window, rounds: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {path: [] for path in _PAGES}
    for number in range(rounds + 1):
        for path, content in _PAGES.items():
            began = time.monotonic()
            window.open(path).locator(content).first.wait_for()
            if number:
                found[path].append(time.monotonic() - began)
    return found


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.console", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--topics", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5, help="one more, the first, warms up")
    options = parser.parse_args(words)
    with (
        tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder,
        Cluster(Path(folder, "home"), brokers=1) as kafka,
    ):
        _fill(kafka, options.topics)
        with driving.running_console("--home", str(kafka.home.root)) as console, driving.chromium() as browser:
            process = next(p for p in psutil.Process().children() if "console" in p.cmdline())
            time.sleep(_WATCHED_S)  # the first looks are at everything
            alone = _watch(process)
            with driving.logged_in(browser, console) as context, driving.window(context, console) as window:
                pages = _time_pages(window, options.rounds)
                window.open("/topics")
                looked_at = _watch(process)
            for path, times in pages.items():
                print(f"{path:22} {spread(times, ' s')}")
            print(f"slowest median         {max(map(statistics.median, pages.values())):6.2f} s")
            print(f"CPU, nobody looks      {100 * alone:6.1f} % of a core")
            print(f"CPU, topics are open   {100 * looked_at:6.1f} % of a core")
            print(f"memory                 {(memory_bytes(process) or 0) / 1e6:6.0f} MB")


if __name__ == "__main__":
    main()

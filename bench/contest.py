"""Contestants side by side: rounds in rotating order, ratios within a round, medians with their spread.

What else the machine does in a minute weighs on all contestants of a round alike; so ratios are taken there first and
summed up afterwards. The first round only warms the brokers up. CPU time is the client's own, without the brokers.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from tests.spark.standalone import java_home_for_spark

from headrace.runtime.java import find_java

K = TypeVar("K")
T = TypeVar("T")
#: Seconds by the clock and of CPU.
Figure = tuple[float, float]


def contest(everyone: Mapping[K, T], run: Callable[[T], Figure], rounds: int) -> dict[K, list[Figure]]:
    """The figures of each contestant, a round each."""
    figures: dict[K, list[Figure]] = {name: [] for name in everyone}
    names = list(everyone)
    for number in range(rounds + 1):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            figure = run(everyone[name])
            if number:
                figures[name].append(figure)
    return figures


def write_file(path: Path, records: int) -> None:
    """So many bus positions of about 330 bytes, one JSON object a line."""
    rng = random.Random(4)
    with path.open("w") as file:
        for number in range(records):
            row = {
                "EVENT_NO_TRIP": str(160_000_000 + number // 500),
                "EVENT_NO_STOP": str(160_000_000 + number // 40),
                "OPD_DATE": "10-SEP-20",
                "VEHICLE_ID": str(1700 + number % 90),
                "METERS": str(number % 90_000),
                "ACT_TIME": str(20_000 + number % 66_000),
                "VELOCITY": str(rng.randrange(30)),
                "DIRECTION": str(rng.randrange(360)),
                "RADIO_QUALITY": "",
                "GPS_LONGITUDE": f"-122.{rng.randrange(10**6):06}",
                "GPS_LATITUDE": f"45.{rng.randrange(10**6):06}",
                "GPS_SATELLITES": str(rng.randrange(4, 13)),
                "GPS_HDOP": "0.7",
                "SCHEDULE_DEVIATION": str(rng.randrange(-300, 300)),
            }
            file.write(json.dumps(row) + "\n")


def expect(condition: bool, words: str) -> None:
    if not condition:
        raise SystemExit(f"error: {words}")


def spread(numbers: list[float], unit: str) -> str:
    return f"{statistics.median(numbers):6.2f}{unit} ({min(numbers):.2f}-{max(numbers):.2f})"


def report(figures: Mapping[str, list[tuple[float, float]]], records: int) -> None:
    """Times, rates, and how many times headrace's time each of the others took."""
    for name, theirs in figures.items():
        clock = [took_s for took_s, _ in theirs]
        cpu = [cpu_s for _, cpu_s in theirs]
        ratios = [their / our for their, (our, _) in zip(clock, figures["headrace"], strict=True)]
        rate = records / statistics.median(clock)
        print(f"{name:16} {spread(clock, ' s')}  {rate:9,.0f} records/s  cpu {spread(cpu, ' s')}", end="")
        print(f"  {spread(ratios, 'x')} headrace's time")


# -- pipelines and their peers, as processes ---------------------------------------------------------------------------


def headrace_command(place: Path, declaration: str, name: str, bootstrap: str, *flags: str) -> list[str]:
    """A run of the pipeline, declared and kept in that folder."""
    place.mkdir()
    (place / "headrace.toml").write_text(declaration, encoding="utf-8")
    where = ["--home", str(place / "home"), "--file", str(place / "headrace.toml"), "--bootstrap", bootstrap]
    return [sys.executable, "-m", "headrace", "pipeline", "run", name, "--quiet", *where, *flags]


def plain_spark_environment(folder: Path) -> dict[str, str]:
    """What PySpark's own launcher needs to find the Java that headrace runs on."""
    java = folder / "java"
    if not java.exists():
        java_home_for_spark(java, find_java())
    return {"JAVA_HOME": str(java)}

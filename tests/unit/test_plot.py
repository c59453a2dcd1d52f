from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

from headrace.errors import Failed, UsageError
from headrace.kafka.read.plot import Scatter, Series
from headrace.kafka.read.records import Record


def record(value: object, topic: str = "iris", partition: int = 0) -> Record:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return Record(topic, partition, 0, 0, "create", None, data)


def colours_in(picture: Path) -> dict[str, int]:
    """How many pixels are clearly red, green or blue."""
    pixels = np.asarray(matplotlib.image.imread(picture))[:, :, :3]
    clear = pixels.max(axis=2) - pixels.min(axis=2) > 0.25
    strongest = pixels.argmax(axis=2)
    return {name: int((clear & (strongest == at)).sum()) for at, name in enumerate(("red", "green", "blue"))}


@pytest.mark.parametrize(
    ("text", "series"),
    [
        ("iris", Series("iris", "iris")),
        ("iris/1", Series("iris/1", "iris", (1,))),
        ("setosa=iris/1", Series("setosa", "iris", (1,))),
        ("setosa:blue=iris/0+1", Series("setosa", "iris", (0, 1), "blue")),
        ("a:b:#ff0000=iris", Series("a:b", "iris", (), "#ff0000")),
    ],
)
def test_a_series_is_written_like_a_route(text: str, series: Series) -> None:
    assert Series.parse(text) == series


@pytest.mark.parametrize("text", ["", "=iris", "a:=iris", ":red=iris", "a=", "iris/x"])
def test_a_series_that_cannot_be_read(text: str) -> None:
    with pytest.raises(UsageError):
        Series.parse(text)


def test_series_are_told_apart_by_topic_and_partition_and_drawn_in_their_colours(tmp_path: Path) -> None:
    series = [Series.parse(t) for t in ("virginica:red=iris/0", "setosa:blue=iris/1", "versicolor:green=other")]
    scatter = Scatter("0", "1", series, labels=("length", "width"))
    for topic, partition, count in (("iris", 0, 5), ("iris", 1, 3), ("other", 7, 2)):
        for number in range(count):
            scatter.add(record([5 + number / 10, 3 + partition / 10], topic, partition))
    scatter.require_drawable(tmp_path / "iris.png")
    scatter.save(tmp_path / "iris.png")

    assert scatter.counts == {"virginica": 5, "setosa": 3, "versicolor": 2}
    assert scatter.left_out == []
    found = colours_in(tmp_path / "iris.png")
    assert all(found.values())
    assert found["red"] > found["blue"] > found["green"]
    assert [path.name for path in tmp_path.iterdir()] == ["iris.png"]


def test_what_is_not_in_the_picture_is_counted(tmp_path: Path) -> None:
    scatter = Scatter("x", "y.z", [Series.parse("iris/0")], points_per_series=100)
    values: Sequence[object] = [
        {"x": 1},
        {"x": "a", "y": {"z": 1}},
        [1, 2],
        b"no JSON",
        b"",
        b"[" * 5000 + b"]" * 5000,
        {"x": None, "y": {"z": 1}},
    ]
    for value in values:
        scatter.add(record(value))
    for number in range(1000):
        scatter.add(record({"x": str(number), "y": {"z": number}}))
    scatter.add(record({"x": 1, "y": {"z": 1}}, partition=1))
    scatter.save(tmp_path / "iris.svg")

    assert scatter.records == len(values) + 1001
    assert scatter.counts == {"iris/0": 1000}
    assert scatter.left_out == [
        "900 points of long series: a random choice of 100 stands for each",
        f"{len(values)} records without a number in x or y.z",
        "1 records that belong to no series",
    ]
    assert (tmp_path / "iris.svg").read_text(encoding="utf-8").startswith("<?xml")


def test_without_a_point_there_is_no_picture(tmp_path: Path) -> None:
    scatter = Scatter("x", "y", [Series.parse("iris")])
    with pytest.raises(Failed, match="nothing to draw") as raised:
        scatter.save(tmp_path / "iris.png")
    assert raised.value.why == "no record was read"
    scatter.add(record({"speed": 1}))
    with pytest.raises(Failed, match="nothing to draw") as raised:
        scatter.save(tmp_path / "iris.png")
    assert raised.value.why == "the record has no field x"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "series", "problem"),
    [
        ("iris.txt", "iris", "is not a picture file name"),
        ("iris", "iris", "is not a picture file name"),
        ("missing/iris.png", "iris", "cannot be written"),
        ("iris.png", "a:reddish=iris", "unknown colour: 'reddish'"),
    ],
)
def test_what_cannot_be_drawn_is_said_before_the_reading(tmp_path: Path, name: str, series: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        Scatter("0", "1", [Series.parse(series)]).require_drawable(tmp_path / name)

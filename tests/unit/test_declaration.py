"""What a declaration may not ask for, found without Spark and told with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import ConfigError
from headrace.pipeline.pipeline import Pipeline

_REALTIME = """
[pipelines.p]
from         = "a"
decode       = { json = "n int" }
trigger      = "realtime"
dead_letters = "a.dead"
into         = { topic = "b" }
"""


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('{ topic = "b" }', '{ delta = "b" }', "line 7: realtime writes to topics only"),
        ('{ topic = "b" }', '{ console = true }', "line 7: realtime writes to topics only"),
        ('{ topic = "b" }', '[{ topic = "b" }, { topic = "c" }]', "line 7: realtime has one sink"),
        ('{ topic = "b" }', '{ topic = "b", where = "n > 1" }', "line 7: the sink of a realtime pipeline has no where"),
        ('{ topic = "b" }', '{ topic = "b", format = "avro" }', "line 7: realtime writes JSON"),
        ('dead_letters = "a.dead"', "", "realtime needs a topic for its dead letters"),
        ('"realtime"', '"realtime"\ndeduplicate = "n"', "line 5: realtime keeps no state"),
        ('"realtime"', '"realtime"\nexpect = { r = { rule = "n > 1", action = "fail" } }', "cannot stop a realtime"),
    ],
)  # fmt: skip
def test_what_real_time_mode_cannot_do(tmp_path: Path, old: str, new: str, words: str) -> None:
    file = tmp_path / "headrace.toml"
    file.write_text(_REALTIME, encoding="utf-8")
    Pipeline.from_file(file, "p")
    file.write_text(_REALTIME.replace(old, new), encoding="utf-8")
    with pytest.raises(ConfigError, match=words):
        Pipeline.from_file(file, "p")

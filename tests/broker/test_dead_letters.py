"""Dead letters in a topic: read, selected, and sent again, each once."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from confluent_kafka import Producer

from headrace.errors import Fenced, UsageError
from headrace.kafka.client import Connection, HasBootstrap
from headrace.kafka.read.consumer import consume
from headrace.kafka.read.records import Record
from headrace.pipeline.books.dead_letters import FACTS, PREFIX, REDRIVEN, Letter, Span, Wanted, letters
from headrace.pipeline.books.redrive import RedrivePlan, RedriveReport, read_edits, redrive, write_for_editing
from headrace.pipeline.declare.declaration import DeadLetters
from tests.records import wait_settled

MakeTopic = Callable[..., str]
Pairs = list[tuple[str, bytes | None]]


@pytest.fixture
def connection(headrace_cluster: HasBootstrap) -> Connection:
    return Connection(headrace_cluster.bootstrap)


class Box:
    """A dead-letter topic of a pipeline with a name of its own, filled as the pipeline fills it."""

    def __init__(self, connection: Connection, make_topic: MakeTopic) -> None:
        self.connection = connection
        self.topic = make_topic(partitions=2)
        self.dead = make_topic(partitions=2)
        self.pipeline = f"p-{uuid.uuid4().hex[:8]}"
        self.place = DeadLetters("topic", self.dead)
        self._producer = Producer({"bootstrap.servers": connection.bootstrap})

    def put(self, offset: int, value: bytes | None, *, rule: str = "decode", headers: Pairs | None = None) -> None:
        told = {
            "pipeline": self.pipeline, "run": "run-1", "outcome": "dead", "rule": rule, "reason": f"{rule} went wrong",
            "topic": self.topic, "partition": "1", "offset": str(offset), "timestamp": str(1_600_000_000_000 + offset),
        }  # fmt: skip
        ours: Pairs = [(PREFIX + fact, told[fact].encode()) for fact in FACTS]
        self._producer.produce(self.dead, value, f"key {offset}", headers=[*(headers or []), *ours])

    def letters(self, wanted: Wanted | None = None) -> list[Letter]:
        assert self._producer.flush(30) == 0
        return sorted(letters(self.connection, self.place, wanted), key=lambda letter: letter.offset)

    def redrive(self, found: Iterable[Letter] | None = None, plan: RedrivePlan | None = None) -> RedriveReport:
        return redrive(self.connection, self.letters() if found is None else found, plan)

    def records(self) -> list[Record]:
        wait_settled(self.connection.bootstrap, self.topic)
        return sorted(consume(self.connection, self.topic), key=lambda record: record.value or b"")


@pytest.fixture
def box(connection: Connection, headrace_topic: MakeTopic) -> Box:
    return Box(connection, headrace_topic)


def test_a_letter_is_read_as_it_was_written(box: Box) -> None:
    own: Pairs = [("a", b"\xff"), ("a", None), ("headrace.rule", b"of an earlier life")]
    box.put(7, b"\xfe\x00", headers=own)
    (letter,) = box.letters()
    assert (letter.key, letter.value, letter.headers) == (b"key 7", b"\xfe\x00", tuple(own))
    assert (letter.pipeline, letter.run, letter.outcome) == (box.pipeline, "run-1", "dead")
    assert (letter.rule, letter.reason) == ("decode", "decode went wrong")
    assert letter.origin == f"{box.topic}/1/7"
    assert letter.timestamp_ms == 1_600_000_000_007
    assert letter.place.startswith(f"{box.dead}/")


def test_what_is_no_letter_is_passed_over(box: Box) -> None:
    producer = Producer({"bootstrap.servers": box.connection.bootstrap})
    producer.produce(box.dead, b"by hand")
    producer.produce(box.dead, b"nearly", headers=[(PREFIX + fact, b"x") for fact in FACTS])
    producer.flush(30)
    box.put(1, None)
    assert [letter.offset for letter in box.letters()] == [1]


def test_a_place_that_was_never_written_to_has_no_letters(connection: Connection, tmp_path: Path) -> None:
    assert list(letters(connection, DeadLetters("topic", f"none-{uuid.uuid4().hex}"))) == []
    assert list(letters(connection, DeadLetters("table", str(tmp_path / "none")))) == []


def test_letters_are_selected(box: Box) -> None:
    for offset, rule in enumerate(["decode", "is inside", "decode", "is fast"]):
        box.put(offset, b"x", rule=rule)

    def chosen(**wanted: object) -> list[int]:
        return [letter.offset for letter in box.letters(Wanted(**wanted))]  # type: ignore[arg-type]

    assert chosen(rules=("decode", "is fast")) == [0, 2, 3]
    assert chosen(reasons=("inside went",)) == [1]
    assert chosen(pipeline="another") == []
    assert chosen(outcomes=("late",)) == []
    assert chosen(spans=(Span.parse(box.topic),)) == [0, 1, 2, 3]
    assert chosen(spans=(Span.parse(f"{box.topic}/0"),)) == []
    assert chosen(spans=(Span.parse(f"{box.topic}/1/2"),)) == [2]
    assert chosen(spans=(Span.parse(f"{box.topic}/1/0-1"), Span.parse(f"{box.topic}/1/3"))) == [0, 1, 3]
    with pytest.raises(UsageError, match="names no records"):
        Span.parse("topic/x")


def test_a_redriven_record_is_the_original_and_says_so(box: Box) -> None:
    box.put(3, b"\xfe\x00", headers=[("own", b"1")])
    (letter,) = box.letters()
    report = box.redrive()
    assert (report.looked_at, report.sent, report.topics) == (1, 1, {box.topic: 1})
    (record,) = box.records()
    assert (record.key, record.value) == (b"key 3", b"\xfe\x00")
    assert record.headers == (
        ("own", b"1"), (REDRIVEN, b"1"), ("headrace.redriven.from", letter.place.encode())
    )  # fmt: skip


def test_a_letter_is_redriven_once_unless_asked_again(box: Box) -> None:
    for offset in range(3):
        box.put(offset, b"%d" % offset)
    only = Wanted(spans=(Span.parse(f"{box.topic}/1/1"),))
    assert box.redrive(box.letters(only)).sent == 1
    report = box.redrive()
    assert (report.sent, report.marked) == (2, 1)
    assert box.redrive().marked == 3
    assert [record.value for record in box.records()] == [b"0", b"1", b"2"]
    assert box.redrive(plan=RedrivePlan(again=True)).sent == 3
    assert len(box.records()) == 6


def test_a_record_of_a_topic_made_anew_is_another_one(box: Box) -> None:
    box.put(0, b"old")
    (letter,) = box.letters()
    box.redrive()
    assert box.redrive([replace(letter, timestamp_ms=letter.timestamp_ms + 1, value=b"new")]).sent == 1


def test_the_same_record_twice_among_the_letters_is_sent_once(box: Box) -> None:
    box.put(5, b"x")
    box.put(5, b"x")
    report = box.redrive()
    assert (report.sent, report.marked) == (1, 1)


def test_records_do_not_go_round_for_ever(box: Box) -> None:
    for offset, times in enumerate((0, 2, 3, 7)):
        box.put(offset, b"%d" % times, headers=[(REDRIVEN, b"%d" % times)])
    report = box.redrive()
    assert (report.sent, report.looping) == (2, 2)
    assert report.looping_samples == [f"{box.topic}/1/2", f"{box.topic}/1/3"]
    counts = [dict(record.headers)[REDRIVEN] for record in box.records()]
    assert counts == [b"1", b"3"]
    assert box.redrive(plan=RedrivePlan(max_times=5)).sent == 1


def test_a_dry_run_sends_nothing(box: Box) -> None:
    box.put(0, b"x")
    assert box.redrive(plan=RedrivePlan(dry=True)).sent == 1
    assert box.records() == []
    assert box.redrive().sent == 1


def test_the_original_partition_if_asked_for(box: Box) -> None:
    for offset in range(20):
        box.put(offset, b"%d" % offset)
    box.redrive(plan=RedrivePlan(keep_partition=True))
    assert {record.partition for record in box.records()} == {1}


def test_letters_are_mended_in_a_file(box: Box, tmp_path: Path) -> None:
    for offset, value in enumerate([b'{"n": "one"}', b"\xff", b"stays", None]):
        box.put(offset, value)
    out = StringIO()
    assert write_for_editing(box.letters(), out) == 4
    lines = out.getvalue().splitlines()
    mended = [lines[0].replace(r"\"one\"", "1"), lines[1], lines[3].replace('"value": null', '"value": "written"')]
    file = tmp_path / "edits"
    file.write_text("\n".join(mended) + "\n\n")
    report = box.redrive(plan=RedrivePlan(edit=read_edits(file)))
    assert (report.sent, report.edited, report.left_out) == (3, 2, 1)
    assert [record.value for record in box.records()] == [b"written", b'{"n": 1}', b"\xff"]


@pytest.mark.parametrize("line", ["no json", "[]", '{"value": "x"}', '{"origin": "t/0/1", "value": 3}'])
def test_a_line_that_is_no_edit_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "edits"
    file.write_text(f'{{"origin": "t/0/0", "value": "x"}}\n{line}\n')
    with pytest.raises(UsageError, match="line 2"):
        read_edits(file)


def test_a_topic_that_is_gone_is_told(box: Box) -> None:
    box.put(0, b"x")
    (letter,) = box.letters()
    with pytest.raises(UsageError, match="gone-for-good"):
        box.redrive([replace(letter, topic="gone-for-good")])


def test_two_redrives_of_one_pipeline_cannot_be(box: Box) -> None:
    """While the first one is reading its letters, a second one comes and goes."""
    box.put(0, b"x")
    (letter,) = box.letters()

    def overtaken() -> Iterator[Letter]:
        yield letter
        yield replace(letter, offset=1, value=b"y" * (32 << 20))  # a chunk's worth: the first two are sent now
        box.redrive([replace(letter, offset=2)])
        yield replace(letter, offset=3)

    with pytest.raises(Fenced):
        box.redrive(overtaken(), RedrivePlan(edit=lambda found: replace(found, value=b"%d" % found.offset)))
    assert [record.value for record in box.records()] == [b"0", b"1", b"x"]


_CUT_OFF = """
    import os, signal, sys
    from headrace.pipeline.books import redrive
    from headrace.pipeline.books.dead_letters import Wanted, letters
    from headrace.pipeline.declare.declaration import DeadLetters
    from headrace.kafka.client import Connection
    from headrace.kafka.write.writer import Writer

    bootstrap, dead, die_in = sys.argv[1], sys.argv[2], int(sys.argv[3])
    redrive._CHUNK_LETTERS = 20
    commits = 0

    class Dying(Writer):
        def commit(self):
            global commits
            commits += 1
            if commits == die_in:
                self.flush()
                os.kill(os.getpid(), signal.SIGKILL)
            super().commit()

    redrive.Writer = Dying
    connection = Connection(bootstrap)
    redrive.redrive(connection, letters(connection, DeadLetters("topic", dead)))
"""


def test_a_redrive_that_is_killed_is_taken_up_where_it_was(box: Box) -> None:
    for offset in range(100):
        box.put(offset, b"%d" % offset)
    assert len(box.letters()) == 100
    for die_in in (1, 3, 2):
        words = [sys.executable, "-c", textwrap.dedent(_CUT_OFF), box.connection.bootstrap, box.dead, str(die_in)]
        assert subprocess.run(words, check=False).returncode == -9
    report = box.redrive()
    assert (report.marked, report.sent) == (60, 40)
    assert sorted(int(record.value or b"") for record in box.records()) == list(range(100))

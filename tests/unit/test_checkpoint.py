"""Checkpoints and declarations on disk: what is read of them, what is wrong with them, what a change means."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ConfigError, Failed, SetupError, UsageError
from headrace.home import Home
from headrace.pipeline.books.checkpoint import Checkpoint
from headrace.pipeline.books.folder import PipelineFolder
from headrace.pipeline.books.rewind import Target, fork, plan_rewind, remove_progress, rewind, wipe
from headrace.pipeline.declare.changes import Change, check_changes, compare, document, remember, remembered
from headrace.pipeline.declare.declaration import (
    Aggregate,
    DeadLetters,
    Declaration,
    Decode,
    Deduplicate,
    Rule,
    Sink,
    Trigger,
    Window,
)
from tests.conftest import Headrace

_TABLE = Sink("delta", "tables/rows")
_COUNTS = Aggregate(("vendor",), {"n": "count(*)"}, Window("1 hour"))


def declared(**changes: Any) -> Declaration:
    return replace(Declaration("trips", ("a", "b"), (_TABLE,)), **changes)


def write_checkpoint(root: Path, *batches: dict[str, dict[str, int]], committed: int) -> Checkpoint:
    """A checkpoint with these batches, of which so many are committed."""
    for folder in ("offsets", "commits", "sources/0"):
        (root / folder).mkdir(parents=True)
    (root / "metadata").write_text('{"id":"0c1b1f7e-0000-4000-8000-000000000000"}')
    (root / "sources/0/0").write_bytes(b'\0v1\n{"a":{"0":5}}')
    for number, offsets in enumerate(batches):
        metadata = {"batchWatermarkMs": 0, "batchTimestampMs": 1_600_000_000_000 + number, "conf": {}}
        (root / f"offsets/{number}").write_text(f"v1\n{json.dumps(metadata)}\n{json.dumps(offsets)}")
        if number < committed:
            (root / f"commits/{number}").write_text('v1\n{"nextBatchWatermarkMs":0}')
    return Checkpoint(root)


@pytest.fixture
def folder(tmp_path: Path) -> PipelineFolder:
    made = PipelineFolder(Home(tmp_path), "trips")
    made.create()
    write_checkpoint(made.root / "checkpoint", {"a": {"0": 10}}, {"a": {"0": 20, "1": 4}}, committed=1)
    return made


def test_what_is_processed_and_what_is_pending(folder: PipelineFolder) -> None:
    found = Checkpoint(folder.checkpoint(declared()))
    found.check()
    assert found.position == {("a", 0): 10}
    pending = found.pending
    assert pending is not None
    # Partition 1 came after batch 0: where it began is not known here.
    assert [(s.partition, s.first, s.next, s.records) for s in pending.spans] == [(0, 10, 20, 10), (1, None, 4, None)]
    assert pending.records is None
    assert found.plan(0).records == 5
    assert json.loads(json.dumps(found.document()))["pending"]["batch"] == 1


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("offsets/1", "", "offsets/1: it is empty"),
        ("offsets/1", "v1\n{}\n", "offsets/1: it does not name a source"),
        ("offsets/1", 'v1\n{}\n{"a":{"0":', "offsets/1"),
        ("offsets/1", 'v9\n{}\n{"a":{"0":1}}', "offsets/1: it begins with 'v9'"),
        ("offsets/0", None, "offsets/0: it is missing, and the query begins with it"),
        ("commits/0", "v1\n", "commits/0: it ends after its first line"),
        ("metadata", "{", "metadata"),
        ("metadata", None, "metadata: it is missing"),
    ],
)
def test_a_damaged_file_is_named(folder: PipelineFolder, file: str, content: str | None, said: str) -> None:
    found = Checkpoint(folder.checkpoint(declared()))
    path = found.root / file
    path.unlink()
    if content is not None:
        path.write_text(content)
    with pytest.raises(Failed, match="is damaged") as told:
        found.check()
    assert said in str(told.value)


def test_where_it_began_is_needed_until_a_batch_is_done(tmp_path: Path) -> None:
    found = write_checkpoint(tmp_path / "checkpoint", {"a": {"0": 10}}, committed=0)
    (found.root / "sources/0/0").write_text("\0v1\nnot json")
    with pytest.raises(Failed, match="is damaged") as told:
        found.check()
    assert "sources/0/0" in str(told.value)


def test_a_checkpoint_elsewhere_is_not_guessed_at() -> None:
    with pytest.raises(UsageError, match="not on this machine"):
        Checkpoint("s3://bucket/checkpoints/trips")


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("beginning", Target("beginning")),
        ("end", Target("end")),
        ("batch:7", Target("batch", batch=7)),
        ("2020-09-10T06:00:00Z", Target("time", at_ms=1_599_717_600_000)),
        ("a:0=17, a:1=3", Target("offsets", offsets={("a", 0): 17, ("a", 1): 3})),
    ],
)
def test_places_as_people_write_them(text: str, target: Target) -> None:
    assert Target.parse(text) == target


@pytest.mark.parametrize("text", ["", "batch:", "yesterday", "a=3", "a:0=x", "a:0=1;a:1=2"])
def test_what_is_no_place(text: str) -> None:
    with pytest.raises(UsageError):
        Target.parse(text)


def test_a_running_pipeline_is_not_touched(folder: PipelineFolder) -> None:
    plan = plan_rewind(folder, declared(), Target.parse("a:0=7"))
    other = PipelineFolder(Home(folder.root.parent.parent), "other")
    with folder.lock():
        attempts: list[Callable[[], object]] = [
            lambda: rewind(folder, declared(), plan),
            lambda: wipe(folder, declared()),
            lambda: fork(folder, declared(), other),
        ]
        for change in attempts:
            with pytest.raises(SetupError, match="runs already") as refused:
                change()
            assert f"pid {os.getpid()}" in str(refused.value)
    assert folder.epoch == 0
    rewind(folder, declared(), plan)
    assert Checkpoint(folder.checkpoint(declared())).position == {("a", 0): 7}


def test_a_plan_is_void_once_the_pipeline_has_run(folder: PipelineFolder) -> None:
    plan = plan_rewind(folder, declared(), Target.parse("a:0=7"))
    found = Checkpoint(folder.checkpoint(declared()))
    (found.root / "offsets/2").write_text((found.root / "offsets/1").read_text())
    with pytest.raises(SetupError, match="has run since"):
        rewind(folder, declared(), plan)
    assert folder.epoch == 0


def test_what_a_rewind_means_is_said_for_each_sink(folder: PipelineFolder) -> None:
    sinks = (
        _TABLE,
        Sink("delta", "tables/hours", aggregate=_COUNTS),
        Sink("delta", "tables/best", aggregate=Aggregate(("v",), {"n": "max(x)"}, mode="recompute")),
        Sink("topic", "out"),
        Sink("console", "console"),
    )
    said = "\n".join(plan_rewind(folder, declared(sinks=sinks), Target.parse("a:0=7")).consequences)
    assert "3 records are read again" in said
    assert "tables/rows: its rows are written again and will be duplicated" in said
    assert "tables/hours: the records are added again, so sums and counts will be too high" in said
    assert "tables/best: keys are recomputed" in said
    assert "out: its rows are sent again" in said
    assert "batch 1 was started and not finished" in said
    forward = plan_rewind(folder, declared(), Target.parse("a:0=12"))
    assert (forward.again, forward.skipped) == (0, 2)
    assert "2 records will never be read" in forward.consequences


def test_a_rewind_that_was_cut_off_is_told_and_can_be_repeated(folder: PipelineFolder) -> None:
    rewind(folder, declared(), plan_rewind(folder, declared(), Target.parse("a:0=7")))
    found = Checkpoint(folder.checkpoint(declared()))
    (found.root / "commits/2").unlink()
    with pytest.raises(Failed, match="is damaged") as told:
        found.check()
    assert "a rewind was cut off" in str(told.value)
    rewind(folder, declared(), plan_rewind(folder, declared(), Target.parse("a:0=7")))
    found.check()
    assert found.position == {("a", 0): 7}


def test_no_backup_no_change(folder: PipelineFolder) -> None:
    plan = plan_rewind(folder, declared(), Target.parse("a:0=7"))
    (folder.root / "backups").write_text("a file where the folder should be")
    with pytest.raises(SetupError, match="nothing was changed"):
        rewind(folder, declared(), plan)
    assert folder.epoch == 0
    assert Checkpoint(folder.checkpoint(declared())).position == {("a", 0): 10}


def test_nothing_to_move(tmp_path: Path) -> None:
    empty = PipelineFolder(Home(tmp_path), "new")
    with pytest.raises(UsageError, match="has no checkpoint to rewind"):
        plan_rewind(empty, declared(), Target("beginning"))
    with pytest.raises(UsageError, match="has no checkpoint to wipe"):
        wipe(empty, declared())


# -- changed declarations ----------------------------------------------------------------------------------------------


def changes(old: Declaration, new: Declaration) -> dict[str, Change]:
    return {change.field: change for change in compare(document(old), document(new))}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"select": {"x": "1"}}, "select"),
        ({"where": "x > 1"}, "where"),
        ({"rules": (Rule("positive", "x > 0"),)}, "expect"),
        ({"trigger": Trigger("every", 5)}, "trigger"),
        ({"dead_letters": DeadLetters("topic", "dead")}, "dead_letters"),
        ({"start": "end"}, "start"),
        ({"decode": Decode("json", "id long")}, "decode"),
        ({"sinks": (_TABLE, Sink("topic", "out"))}, "into[out]"),
        ({"sinks": (replace(_TABLE, where="x > 1"),)}, "into[tables/rows].where"),
        ({"topics": ("a", "b", "c")}, "from"),
        ({"deduplicate": Deduplicate(("id",))}, "deduplicate"),
        ({"kafka": {"fetch.max.bytes": "1"}}, "kafka"),
        ({"max_records_per_batch": 5}, "max_records_per_batch"),
    ],
)
def test_changes_that_hold_from_now_on(change: dict[str, Any], field: str) -> None:
    found = changes(declared(), declared(**change))
    assert set(found) == {field}
    assert found[field].allowed
    assert found[field].effect


@pytest.mark.parametrize(
    ("old", "new", "field", "way_out"),
    [
        ({}, {"topics": ("a",)}, "from", "checkpoint fork trips"),
        ({}, {"checkpoint": "elsewhere"}, "checkpoint", "move the folder"),
        ({}, {"sinks": (replace(_TABLE, partition_by=("day",)),)}, "into[tables/rows].partition_by", "another folder"),
        ({"sinks": (replace(_TABLE, aggregate=_COUNTS),)},
         {"sinks": (replace(_TABLE, aggregate=replace(_COUNTS, by=("vendor", "day"))),)},
         "into[tables/rows].aggregate.by", "another folder"),
        ({"sinks": (replace(_TABLE, aggregate=_COUNTS),)},
         {"sinks": (replace(_TABLE, aggregate=replace(_COUNTS, window=Window("2 hours"))),)},
         "into[tables/rows].aggregate.window", "another folder"),
        ({"sinks": (replace(_TABLE, aggregate=replace(_COUNTS, mode="watermark")),)},
         {"sinks": (replace(_TABLE, aggregate=replace(_COUNTS, mode="watermark", by=("x",))),)},
         "into[tables/rows].aggregate", "checkpoint wipe trips"),
        ({}, {"sinks": (_TABLE, Sink("delta", "t", aggregate=replace(_COUNTS, mode="watermark")))}, "into[t]",
         "checkpoint wipe trips"),
        ({"deduplicate": Deduplicate(("id",))}, {"deduplicate": Deduplicate(("id", "at"))}, "deduplicate",
         "checkpoint fork trips"),
    ],
)  # fmt: skip
def test_changes_that_would_make_something_wrong(
    tmp_path: Path, old: dict[str, Any], new: dict[str, Any], field: str, way_out: str
) -> None:
    found = changes(declared(**old), declared(**new))
    assert not found[field].allowed
    folder = PipelineFolder(Home(tmp_path), "trips")
    folder.create()
    remember(folder, declared(**old), {"a": "id-of-a"})
    with pytest.raises(ConfigError, match="cannot change while the checkpoint stays") as refused:
        check_changes(folder, declared(**new))
    assert way_out in str(refused.value)
    assert field in str(refused.value)
    assert check_changes(folder, declared(**old)) == []


def test_a_checkpoint_may_move_with_its_folder(folder: PipelineFolder, tmp_path: Path) -> None:
    remember(folder, declared(), {})
    elsewhere = tmp_path / "elsewhere"
    with pytest.raises(ConfigError):
        check_changes(folder, declared(checkpoint=str(elsewhere)))
    Path(folder.checkpoint(declared())).rename(elsewhere)
    assert [c.field for c in check_changes(folder, declared(checkpoint=str(elsewhere)))] == ["checkpoint"]


def test_a_wipe_finds_the_checkpoint_that_was_run_with(folder: PipelineFolder, tmp_path: Path) -> None:
    remember(folder, declared(), {})
    new = declared(checkpoint=str(tmp_path / "elsewhere"), topics=("a",))
    wipe(folder, new)
    assert check_changes(folder, new) == []
    assert not (folder.root / "checkpoint").exists()
    assert folder.epoch == 1


class Killed(BaseException):
    """The process is gone: what comes behind it changes nothing any more."""


def killed_before(step: int, act: Callable[[], object], patch: pytest.MonkeyPatch) -> bool:
    """Whether it was killed before that change of a folder; False: it came to its end."""
    changes = itertools.count()

    def counted(change: Callable[..., Any]) -> Callable[..., Any]:
        def made(*given: Any, **named: Any) -> Any:
            if next(changes) >= step:
                raise Killed
            return change(*given, **named)

        return made

    with patch.context() as patched:
        for name in ("mkdir", "rename", "replace", "rmdir", "unlink"):
            patched.setattr(os, name, counted(getattr(os, name)))
        try:
            act()
        except Killed:
            return True
    return False


@pytest.mark.parametrize("seen", [False, True])
def test_a_wipe_that_was_killed_anywhere_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: bool
) -> None:
    for step in itertools.count():
        folder = PipelineFolder(Home(tmp_path / str(step)), "trips")
        folder.create()
        root = folder.root
        write_checkpoint(root / "checkpoint", {}, committed=1)
        files = {path.relative_to(root) for path in root.glob("checkpoint/**/*")}
        (root / "seen").mkdir()
        (root / "seen" / "rows").touch()
        remember(folder, declared(), {})

        def remove(folder: PipelineFolder = folder) -> None:
            if seen:
                remove_progress(folder, declared(), seen=True)
            else:
                wipe(folder, declared())

        was_killed = killed_before(step, remove, monkeypatch)
        if (root / "checkpoint").exists():
            assert {path.relative_to(root) for path in root.glob("checkpoint/**/*")} == files
        if was_killed:
            remove()
        assert not folder.declaration_file.exists()
        assert not [path.name for path in root.iterdir() if "checkpoint" in path.name]
        backups = [path for path in (root / "backups").iterdir() if not path.name.startswith(".")]
        assert any({path.relative_to(each) for path in each.glob("checkpoint/**/*")} == files for each in backups)
        assert len(list(root.glob("backups/*/seen/rows"))) == seen
        assert (root / "seen/rows").exists() is not seen
        write_checkpoint(root / "checkpoint", {}, committed=1)
        remove()
        if not was_killed:
            break
    assert step > 15


def test_what_was_seen_is_removed_without_a_checkpoint_too(folder: PipelineFolder) -> None:
    (folder.root / "seen").mkdir()
    wipe(folder, declared())
    with folder.lock():
        assert (backup := remove_progress(folder, declared(), seen=True).backup)
    assert Path(backup, "seen").is_dir()


def step(frame: Any) -> Any:
    return frame


def test_functions_by_name_and_no_secrets(folder: PipelineFolder) -> None:
    made = declared(
        select_step=step, decode=Decode(step=step),
        kafka={"sasl.jaas.config": "password=\"hunter2\"", "ssl.key.password": "hunter2", "fetch.min.bytes": "1"},
    )  # fmt: skip
    remember(folder, made, {"a": "id-of-a", "b": None})
    text = folder.declaration_file.read_text()
    assert "hunter2" not in text
    assert folder.declaration_file.stat().st_mode & 0o077 == 0
    known = remembered(folder)
    assert known is not None
    assert known.topic_ids == {"a": "id-of-a"}
    assert known.declaration["select"] == {"python": f"{__name__}:step"}
    assert known.declaration["kafka"]["fetch.min.bytes"] == "1"
    assert compare(known.declaration, document(made)) == []


def test_a_fork_warns_of_a_batch_that_both_will_write(tmp_path: Path, run: Headrace) -> None:
    (tmp_path / "headrace.toml").write_text('[pipelines.trips]\nfrom = "a"\ninto = { delta = "tables/trips" }\n')
    home = Home(tmp_path / ".headrace")
    write_checkpoint(PipelineFolder(home, "trips").root / "checkpoint", {"a": {"0": 10}}, {"a": {"0": 30}}, committed=1)
    said = run("pipeline", "checkpoint", "fork", "trips", "more")
    assert "warning: batch 1 was started and not finished: both pipelines will write it\n" in said.err
    told = run("pipeline", "checkpoint", "fork", "trips", "others", "--json").json()
    assert told["warnings"] == ["batch 1 was started and not finished: both pipelines will write it"]


def test_a_fork_without_a_declaration_remembers_what_it_came_from(folder: PipelineFolder, tmp_path: Path) -> None:
    remember(folder, declared(), {"a": "id-of-a"})
    (folder.root / "seen").mkdir()
    (folder.root / "seen" / "part.parquet").write_text("what was seen")
    new = PipelineFolder(Home(tmp_path), "other")
    moved = fork(folder, declared(), new)
    assert moved.position == {("a", 0): 10}
    assert (new.root / "seen" / "part.parquet").is_file()
    assert check_changes(new, declared(name="other")) == []
    with pytest.raises(ConfigError):
        check_changes(new, declared(name="other", topics=("a",)))
    with new.lock_file.open() as handle:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nothing holds it any more

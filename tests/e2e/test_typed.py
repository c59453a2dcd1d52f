"""What the README, the example and the demo tell people to type, typed: every command ends well."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.conftest import Done, Headrace, take_down

_PROJECT = Path(__file__).parents[2]
_RECORDS = 1500


def commands(text: str) -> list[list[str]]:
    """The words behind each `headrace` of a text, as a shell would take them."""
    lines = re.findall(r"^(?:\$|#  ) headrace (.*)$", text, re.MULTILINE)
    return [shlex.split(line, comments=True) for line in lines]


def console_block(text: str, number: int) -> str:
    blocks: list[str] = re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return blocks[number]


def test_the_readmes_first_session(run: Headrace, tmp_path: Path) -> None:
    session = console_block((_PROJECT / "README.md").read_text(encoding="utf-8"), 0)
    try:
        done = {words[0]: succeeded(run, *words) for words in commands(session)}
        assert list(done) == ["up", "sample", "produce", "kill", "consume", "down"]
        assert "1,000 records acknowledged, 0 failed" in done["produce"].err
        assert "processed a total of 1,000 records" in done["consume"].err
        assert len((tmp_path / "out.ndjson").read_text(encoding="utf-8").splitlines()) == 1000
    finally:
        take_down(tmp_path / ".headrace")


@pytest.mark.timeout(600)
def test_the_example_from_its_first_command_to_a_fork(run: Headrace, tmp_path: Path) -> None:
    declared = (_PROJECT / "examples" / "breadcrumbs" / "headrace.toml").read_text(encoding="utf-8")
    # Another pipeline of the same records, which goes on from the first.
    fork = '\n[pipelines.copy]\nfrom = "breadcrumbs"\ndecode = "text"\ndead_letters = "copy.dead"\n'
    fork += '[[pipelines.copy.into]]\ndelta = "tables/copy"\n'
    (tmp_path / "headrace.toml").write_text(declared + fork, encoding="utf-8")
    try:
        for words in commands(declared.replace("--records 20000", f"--records {_RECORDS} --truth truth.ndjson")):
            succeeded(run, *words)
        books_balance(run, read=_RECORDS)
        letters_are_sent_again(run)
        a_checkpoint_moves(run)
    finally:
        take_down(tmp_path / ".headrace")


def books_balance(run: Headrace, *, read: int) -> None:
    flow = succeeded(run, "pipeline", "explain", "breadcrumbs").out
    assert "tables/speeds" in flow
    ledger = succeeded(run, "pipeline", "ledger", "breadcrumbs", "--json").json()
    assert (ledger["balanced"], [once["read"] for once in ledger["runs"]]) == (True, [read])
    assert succeeded(run, "pipeline", "status", "breadcrumbs", "--json").json()["lag"] == 0
    assert "SPEED" in succeeded(run, "table", "head", "speeds").out


def letters_are_sent_again(run: Headrace) -> None:
    groups = succeeded(run, "pipeline", "dead-letters", "breadcrumbs", "--json").json()
    dead = sum(group["records"] for group in groups)
    tried = succeeded(run, "pipeline", "redrive", "breadcrumbs", "--dry-run", "--json").json()
    # They are as wrong as before: each would be a dead letter again.
    assert sum(records for outcome, _, records in tried["outcomes"] if outcome == "dead") == dead > 0
    first, second = (succeeded(run, "pipeline", "redrive", "breadcrumbs", "--json").json() for _ in range(2))
    assert (first["sent"], second["sent"], second["marked"]) == (dead, 0, dead)
    # Lag counts offsets, and the transaction has left a marker in each partition that it wrote to.
    assert succeeded(run, "pipeline", "status", "breadcrumbs", "--json").json()["lag"] > dead


def a_checkpoint_moves(run: Headrace) -> None:
    assert "1500" in succeeded(run, "pipeline", "checkpoint", "show", "breadcrumbs").out
    moved = succeeded(run, "pipeline", "checkpoint", "rewind", "breadcrumbs", "--to", "beginning", "--yes")
    assert "1,500 records are read again" in moved.err
    assert (
        "copy continues from the offsets of"
        in succeeded(run, "pipeline", "checkpoint", "fork", "breadcrumbs", "copy").err
    )


@pytest.mark.timeout(600)
def test_the_demo_small(run: Headrace) -> None:
    done = succeeded(run, "demo", "--records", 2000, "--no-stay")
    assert "2,000 acknowledged, 0 failed" in done.out


def succeeded(run: Headrace, *words: object) -> Done:
    done = run(*words, timeout_s=500)
    assert done.code == 0, (words, done.out, done.err)
    return done

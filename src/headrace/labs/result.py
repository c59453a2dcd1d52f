"""What a lab did and saw, in order, as it is kept under the home:

    labs/
      keys/
        result.json       everything that was said, checked and measured
        *.svg             the pictures, each for light and for dark
        files/            what the lab works with, while it runs or if it is kept
        logs/             what every node logged meanwhile, if the lab is red
        report.md, report.html
      report.md, report.html    all labs in one

A result is written whole when the lab has ended; reports are made from results alone, at any time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from headrace.home import Home, read_json, write_json

Verdict = Literal["green", "red", "inconclusive"]


@dataclass(frozen=True)
class Entry:
    """One thing of the lab's story. `kind` says which fields of `facts` there are."""

    kind: Literal["step", "say", "command", "output", "check", "measure", "table", "figure"]
    facts: dict[str, Any]


@dataclass
class Trouble:
    """Why a lab could not be finished."""

    problem: str
    why: str | None = None
    hint: str | None = None
    log: str | None = None
    trace: str | None = None
    #: The machine was too busy: a quiet one might have come to the end.
    busy: bool = False

    @property
    def lines(self) -> list[tuple[str, str]]:
        """What is known beside the problem, with a label for each."""
        known = (("why", self.why), ("try", self.hint), ("log", self.log))
        return [(label, text) for label, text in known if text]


@dataclass
class LabResult:
    """One run of one lab."""

    name: str
    title: str
    about: str
    document: str
    rows: tuple[str, ...]
    profile: str
    seed: int
    parameters: dict[str, object]
    cluster: dict[str, object] = field(default_factory=dict)
    began: str = ""
    seconds: float = 0.0
    entries: list[Entry] = field(default_factory=list)
    trouble: Trouble | None = None
    logs: dict[str, str] = field(default_factory=dict)
    kept_topics: list[str] = field(default_factory=list)

    @property
    def checks(self) -> list[dict[str, object]]:
        return [entry.facts for entry in self.entries if entry.kind == "check"]

    @property
    def failed(self) -> list[dict[str, Any]]:
        return [check for check in self.checks if not check["holds"] and not check.get("excuse")]

    @property
    def excused(self) -> list[dict[str, object]]:
        """Measurements of time that do not hold, on a machine that was too busy for them."""
        return [check for check in self.checks if not check["holds"] and check.get("excuse")]

    @property
    def held(self) -> int:
        """How many checks hold."""
        return len(self.checks) - len(self.failed) - len(self.excused)

    @property
    def verdict(self) -> Verdict:
        """Green if it came to its end, checked something, and every check holds."""
        if self.failed or (self.trouble and not self.trouble.busy):
            return "red"
        if self.excused or self.trouble:
            return "inconclusive"
        return "green" if self.checks else "red"

    @property
    def reason(self) -> str:
        """Why it is not green, in one line."""
        if self.trouble:
            return f"{self.trouble.why}; {self.trouble.problem}" if self.trouble.busy else self.trouble.problem
        broken = self.failed or self.excused
        if broken:
            first = broken[0]
            more = f" (and {len(broken) - 1} more)" if len(broken) > 1 else ""
            words = f"{first['what']}: expected {first['expected']}, seen {first['seen']}{more}"
            return words if self.failed else f"{first['excuse']}; {words}"
        return "" if self.checks else "nothing was checked"

    def to_json(self) -> dict[str, object]:
        return {"verdict": self.verdict, "reason": self.reason or None, **asdict(self)}

    @classmethod
    def of(cls, document: dict[str, Any]) -> LabResult:
        """The result that was kept."""
        known = {name: document[name] for name in cls.__dataclass_fields__}
        known["rows"] = tuple(known["rows"])
        known["entries"] = [Entry(**entry) for entry in known["entries"]]
        known["trouble"] = Trouble(**known["trouble"]) if known["trouble"] else None
        return cls(**known)


def result_folder(home: Home, name: str) -> Path:
    return home.labs / name


def save(home: Home, result: LabResult) -> None:
    write_json(result_folder(home, result.name) / "result.json", result.to_json())


def kept_results(home: Home, names: tuple[str, ...]) -> Iterator[LabResult]:
    """The results that this home has, in that order."""
    for name in names:
        document = read_json(result_folder(home, name) / "result.json", "headrace lab run " + name)
        if document is not None:
            yield LabResult.of(document)


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")

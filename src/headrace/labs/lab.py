"""What a lab is: its place in the documents, the cluster it needs, its parameters, and the function that runs it.

The words about it stand once, in the docstring of its file: the first line is its title, the rest says what will be
shown and why.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import nan
from types import SimpleNamespace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from headrace.labs.workbench import Workbench

from headrace import UsageError

Profile = Literal["full", "fast"]

DOCUMENTS = {
    "S0": "Iris: a producer and three consumers",
    "S1": "A messaging service",
    "S2": "Data transport of bus breadcrumbs",
    "S3": "An introduction to Kafka",
    "S4": "Kafka, session by session",
}


@dataclass(frozen=True)
class Parameter:
    """A number that can be changed with --param, within a range. `default` is the document's, `fast` the tests'."""

    name: str
    default: int | float
    says: str
    fast: int | float | None = None
    #: Outside of this range the experiment would check nothing, or not come to an end.
    least: float = 1
    most: float = 1_000_000

    @property
    def range(self) -> str:
        kind = "a whole number" if isinstance(self.default, int) else "a number"
        return f"{kind} from {_plain(self.least)} to {_plain(self.most)}"

    def parse(self, text: str) -> int | float:
        """The value that was written on the command line, of the same type as the default."""
        try:
            value = type(self.default)(text)
        except ValueError:
            value = nan
        if not self.least <= value <= self.most:
            raise UsageError(
                f"invalid value for the parameter {self.name}: {text!r}",
                why=f"{self.name} ({self.says}) is {self.range}",
                hint=f"--param {self.name}={self.default}",
            )
        return value


def _plain(number: float) -> str:
    return f"{number:,.0f}" if number == int(number) else f"{number:g}"


@dataclass(frozen=True)
class Needs:
    """The cluster that a lab needs. With `faults` nodes are killed: such a lab never uses a cluster of the user's."""

    brokers: int = 3
    racks: tuple[str, ...] = ()
    services: tuple[str, ...] = ()
    faults: bool = False
    #: Kafka properties without which the lab would wait for minutes.
    kafka: Mapping[str, str] = field(default_factory=dict)
    #: Topics that cannot have other names: a declaration names them, or a page. A cluster on which the user has one of
    #: them, or a subject that is named after it, is left alone.
    topics: tuple[str, ...] = ()


@dataclass(frozen=True)
class Lab:
    """One experiment."""

    document: str
    rows: tuple[str, ...]
    run: Callable[[Workbench], None]
    needs: Needs = field(default_factory=Needs)
    parameters: tuple[Parameter, ...] = ()
    #: It spends most of its time waiting, so others may run beside it.
    waits: bool = False
    #: What its commands need beside what they make themselves, by file name: schemas, a headrace.toml.
    files: Mapping[str, Callable[[], str]] = field(default_factory=dict)
    #: It measures speed, so nothing may run beside it.
    alone: bool = False
    #: What must hold between its parameters, in words, with the test of it.
    rules: Mapping[str, Callable[[SimpleNamespace], bool]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.run.__module__.rsplit(".", 1)[-1]

    @property
    def title(self) -> str:
        return self._words.partition("\n")[0].rstrip(".")

    @property
    def about(self) -> str:
        """What will be shown and why, in paragraphs."""
        return self._words.partition("\n")[2].strip()

    @property
    def _words(self) -> str:
        return inspect.cleandoc(sys.modules[self.run.__module__].__doc__ or self.name)

    def values(self, profile: Profile, given: Mapping[str, str]) -> SimpleNamespace:
        """The parameters of a run: the document's or the fast ones, and above them what was given.

        Together they must be such that the experiment shows what it is there to show.
        """
        known = {parameter.name: parameter for parameter in self.parameters}
        values = {name: p.fast if profile == "fast" and p.fast is not None else p.default for name, p in known.items()}
        values |= {name: known[name].parse(text) for name, text in given.items() if name in known}
        found = SimpleNamespace(**values)
        for rule, keeps in self.rules.items():
            if not keeps(found):
                raise UsageError(
                    f"these parameters do not fit together: {rule}",
                    why=f"{self.name} would run with {', '.join(f'{n}={v}' for n, v in values.items())}",
                    hint=f"headrace lab list {self.name}",
                )
        return found


def require_valid(labs: Sequence[Lab], given: Mapping[str, str], profile: Profile = "full") -> None:
    """Every given parameter is one of some lab that will run, with a value that it can have."""
    for lab in labs:
        lab.values(profile, given)
    for name in given:
        if not any(parameter.name == name for lab in labs for parameter in lab.parameters):
            known = sorted({parameter.name for lab in labs for parameter in lab.parameters})
            raise UsageError(
                f"there is no parameter {name!r}",
                why=f"the parameters are {', '.join(known)}" if known else "these labs have none",
                hint="headrace lab list NAME shows them",
            )

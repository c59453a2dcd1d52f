"""The labs by name, in the order of the documents. A lab's file is loaded only when the lab is asked for."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from importlib import import_module

from headrace import UsageError
from headrace.labs.lab import Lab

NAMES = (
    "quickstart", "replication", "offsets", "connect", "bench",
    "iris",
    "transport", "storage", "producers", "concurrent", "keys", "flush", "groups", "transactions",
    "breadcrumbs",
    "rebalance", "configs", "console", "avro", "upgrade", "taxi",
    "customers", "segments", "controller", "racks", "isr", "producer", "semantics",
)  # fmt: skip


def find_lab(name: str) -> Lab:
    """The lab of that name; an unknown one is an error with the nearest name."""
    if name not in NAMES:
        near = difflib.get_close_matches(name, NAMES, n=1)
        raise UsageError(
            f"there is no lab {name!r}",
            why=f"the nearest name is {near[0]!r}" if near else f"there are {', '.join(NAMES)}",
            hint="headrace lab list",
        )
    found: Lab = import_module(f"headrace.labs.experiments.{name}").LAB
    return found


def every_lab(names: Sequence[str] = ("all",)) -> list[Lab]:
    """The labs of those names, each once; `all` stands for every one."""
    wanted = dict.fromkeys(each for name in names for each in (NAMES if name == "all" else (name,)))
    return [find_lab(name) for name in wanted]

"""SHOW: pages for people and a JSON API for programs, both made of the monitor's Snapshot.

`serve` runs a console until Ctrl-C; `python -m headrace.console` is the node of a cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.console.access import read_password
    from headrace.console.server import Serving, serve
else:
    from headrace.lazy import lazy_exports

    __getattr__, __all__ = lazy_exports(__name__, {
        "access": ["read_password"],
        "server": ["Serving", "serve"],
    })  # fmt: skip

"""Records shown to people, without a group: pages, searches and a live tail."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.kafka.browse.browser import Browser, Page, Query
    from headrace.kafka.browse.expression import Expression
    from headrace.kafka.browse.render import Renderer, Shown
    from headrace.kafka.browse.tail import Tail
    from headrace.kafka.browse.visibility import BrowsedRecord
else:
    from headrace.lazy import lazy_exports

    __getattr__, __all__ = lazy_exports(__name__, {
        "browser": ["Browser", "Page", "Query"],
        "expression": ["Expression"],
        "render": ["Renderer", "Shown"],
        "tail": ["Tail"],
        "visibility": ["BrowsedRecord"],
    })  # fmt: skip

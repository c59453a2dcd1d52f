"""ASK: SQL over the tables of a project and over topics, by DuckDB, without a JVM.

`sql` is the door. A query reads what it names and changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.query.select import Result, sql
else:
    from headrace.lazy import lazy_exports

    __getattr__, __all__ = lazy_exports(__name__, {"select": ["Result", "sql"]})

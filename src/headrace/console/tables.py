"""Tables that stay quick with thousands of rows: filtered, sorted and paged here, so that one page of rows travels.

A column says how its cells look (`kind`); a row holds, under the column's name, what is shown, and under `_name` what
it is sorted by if that is something else. What the browser asks for (page, sorting) is looked up, never trusted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from nicegui import ui

Kind = Literal["text", "number", "link", "state", "spark", "mono", "name", "clip", "mark", "meter", "open", "tag"]
Row = dict[str, Any]

_CELL = '<q-td :props="props">%s</q-td>'
_SLOTS = {
    "link": _CELL % '<a class="link" :href="props.row.{name}_href">{{{{ props.value }}}}</a>',
    "state": _CELL % '<span class="state" :data-state="props.row.{name}_state">{{{{ props.value }}}}</span>',
    "mark": _CELL % '<span class="mark" :data-mark="props.row.{name}_mark">{{{{ props.value }}}}</span>',
    "tag": _CELL % '<span class="tag" v-if="props.value">{{{{ props.value }}}}</span>',
    "open": _CELL
    % """<button type="button" class="opener" @click.stop="$parent.$emit('open', props.row.{name}_key)">
    {{{{ props.value }}}}</button>""",
    "spark": _CELL
    % '<svg class="spark" viewBox="0 0 100 24" preserveAspectRatio="none"><path :d="props.value"></path></svg>',
    "meter": _CELL
    % """<span class="bar-cell">{{{{ props.value }}}}<span class="meter">
    <i :style="{{width: props.row.{name}_share + '%'}}"></i></span></span>""",
}
_ALIGNED = {"number": "right", "meter": "right", "open": "right"}
_CLASSES = {
    "number": "num",
    "meter": "num",
    "mono": "mono",
    "name": "name",
    "open": "num",
    "clip": "clip mono",
    "link": "name",
}


@dataclass(frozen=True)
class Column:
    """A column. On a phone the `wide` ones are left out."""

    name: str
    label: str
    kind: Kind = "text"
    wide: bool = False
    sortable: bool = True

    def spec(self) -> dict[str, Any]:
        wide = "wide-only" if self.wide else ""
        return {
            "name": self.name,
            "label": self.label,
            "field": self.name,
            "align": _ALIGNED.get(self.kind, "left"),
            "sortable": self.sortable and self.kind != "spark",
            "classes": f"{_CLASSES.get(self.kind, '')} {wide}".strip(),
            "headerClasses": wide,
        }


class Table:
    """A live table. `rows` gives all rows; `sparks` are the lines in its column of that kind, by key.

    One that is not `paged` shows all rows: its pages are turned elsewhere.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        rows: Callable[[], Sequence[Row]],
        *,
        key: str,
        sort: str | None = None,
        in_order: bool = False,
        descending: bool = False,
        per_page: int = 50,
        paged: bool = True,
        on_open: Callable[[Row], Any] | None = None,
    ) -> None:
        self.columns = {column.name: column for column in columns}
        self._rows = rows
        self.sparks: Mapping[Any, str] = {}
        #: Called when other rows are shown than before.
        self.on_turn: Callable[[], Any] = lambda: None
        self._key = key
        self._filter = ""
        self._paged = paged
        self._paging: dict[str, Any] = {
            "page": 1,
            "rowsPerPage": per_page,
            "sortBy": None if in_order else sort or columns[0].name,
            "descending": descending,
            "rowsNumber": 0,
        }
        self.table = ui.table(
            columns=[column.spec() for column in columns], rows=[], row_key=key, pagination=self._paging
        )
        self.table.classes("grid").props(
            'flat dense binary-state-sort no-data-label="nothing to show" :rows-per-page-options="[25, 50, 100, 500]" '
            "tabindex=0"  # where it is wider than the screen, arrow keys move it
        )
        for column in columns:
            if column.kind in _SLOTS:
                self.table.add_slot(f"body-cell-{column.name}", _SLOTS[column.kind].format(name=column.name))
        self.table.on("request", self._asked)
        if on_open is not None:
            self.table.on("open", lambda event: self._opened(event.args, on_open))
        self.refresh()

    def search(self, text: str) -> None:
        """Only rows that have the text in their key or in any column."""
        self._filter = text.strip().lower()
        self._paging["page"] = 1
        self.refresh()

    @property
    def shown(self) -> list[Any]:
        """The keys of the rows on the page that is shown."""
        return [row[self._key] for row in self.table._props["rows"]]

    def refresh(self) -> None:
        """The rows as they are now; nothing is sent if nothing has changed."""
        rows = [row for row in self._rows() if self._matches(row)]
        sort = self._paging["sortBy"]
        if sort:
            down = bool(self._paging["descending"])
            rows.sort(key=lambda row: _sortable(row.get(f"_{sort}", row.get(sort))), reverse=down)
        size = int(self._paging["rowsPerPage"])
        pages = max(1, -(-len(rows) // size))
        page = min(int(self._paging["page"]), pages)
        shown = rows[(page - 1) * size : page * size]
        for row in shown:
            row["spark"] = self.sparks.get(row[self._key], "")
        paging = {**self._paging, "page": page, "rowsNumber": len(rows)}
        if shown != self.table._props["rows"] or paging != self.table._props.get("pagination"):
            self._paging = paging
            self.table._props["rows"] = shown
            self.table._props["pagination"] = dict(paging)
            self.table.update()
        few = len(rows) <= 25 or not self._paged
        if self.table._props.get("hide-pagination", False) != few:
            self.table._props["hide-pagination"] = few
            self.table.update()

    def _matches(self, row: Row) -> bool:
        if not self._filter:
            return True
        return any(
            self._filter in str(value).lower()
            for name, value in row.items()
            if name in self.columns or name == self._key
        )

    def _asked(self, event: Any) -> Any:
        wanted = (event.args or {}).get("pagination") or {}
        if wanted.get("sortBy") in self.columns:
            self._paging["sortBy"] = wanted["sortBy"]
            self._paging["descending"] = wanted.get("descending") is True
        if isinstance(wanted.get("page"), int):
            self._paging["page"] = max(1, wanted["page"])
        if wanted.get("rowsPerPage") in (25, 50, 100, 500):
            self._paging["rowsPerPage"] = wanted["rowsPerPage"]
        self.refresh()
        return self.on_turn()

    def _opened(self, named: Any, on_open: Callable[[Row], Any]) -> Any:
        rows = self.table._props["rows"]
        row = next((row for row in rows if named in (row[self._key], row.get(f"{self._key}_key"))), None)
        return on_open(row) if row else None


def _sortable(value: Any) -> tuple[int, Any]:
    """Unknown values come first, then numbers, then texts."""
    if value is None:
        return (0, 0)
    return (1, value) if isinstance(value, int | float) else (2, str(value).lower())

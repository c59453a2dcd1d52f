"""Tables that stay quick with thousands of rows: filtered, sorted and paged here, so that one page of rows travels.

A row is any object; a column says what it shows of it and how. What the browser asks for (page, sorting) is looked up,
never trusted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from nicegui import ui

from headrace.console import formatting
from headrace.console.widgets import Live
from headrace.monitor import Snapshot

if TYPE_CHECKING:
    from nicegui.events import GenericEventArguments

Kind = Literal["text", "number", "link", "state", "spark", "mono", "name", "clip", "mark", "meter", "open", "tag"]

# What else a cell of that kind needs, beside what it shows.
_MORE = {"link": "href", "state": "state", "mark": "mark", "open": "key"}
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
    """A column. `of` takes the value out of a row, by default the attribute of the column's name; `show` is its text.

    Rows are sorted by the value, or by what `sort` takes out of them. `more` is what links lead to, and which state or
    mark a cell has. On a phone the `wide` ones are left out.
    """

    name: str
    label: str
    kind: Kind = "text"
    of: Callable[[Any], object] | None = None
    show: Callable[[Any], object] | None = None
    more: Callable[[Any], object] | None = None
    sort: Callable[[Any], object] | None = None
    wide: bool = False
    sortable: bool = True

    def value(self, row: object) -> Any:
        return self.of(row) if self.of else getattr(row, self.name, None)

    def text(self, row: object) -> object:
        value = self.value(row)
        if self.show:
            return self.show(value)
        return formatting.DASH if value is None else value

    def order(self, row: object) -> tuple[int, Any]:
        """Unknown values come first, then numbers, then texts."""
        value = self.sort(row) if self.sort else self.value(row)
        if value is None:
            return (0, 0)
        return (1, value) if isinstance(value, int | float) else (2, str(value).lower())

    def spec(self) -> dict[str, object]:
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
    """A live table. `rows` gives all rows; `key` takes what tells them apart; `sparks` are lines by that key.

    One that is not `paged` shows all rows: its pages are turned elsewhere.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        rows: Callable[[], Sequence[object]],
        *,
        key: Callable[[Any], Any],
        sort: str | None = None,
        in_order: bool = False,
        descending: bool = False,
        per_page: int = 50,
        paged: bool = True,
        on_open: Callable[[Any], object] | None = None,
    ) -> None:
        self.columns = {column.name: column for column in columns}
        self._rows = rows
        self._shown: list[object] = []
        self.sparks: Mapping[Any, str] = {}
        #: Called when other rows are shown than before.
        self.on_turn: Callable[[], object] = lambda: None
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
            columns=[column.spec() for column in columns], rows=[], row_key="row_key", pagination=self._paging
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

    def live(self, live: Live, nothing: ui.element | None = None) -> None:
        """Every snapshot refreshes it; while there is no row, `nothing` stands in its place."""

        def refresh(_: Snapshot) -> None:
            self.refresh()
            if nothing is not None:
                nothing.set_visibility(not self._has_rows)
                self.table.set_visibility(self._has_rows)

        live(refresh)

    def search(self, text: str) -> None:
        """Only rows that have the text in their key or in any column."""
        self._filter = text.strip().lower()
        self._paging["page"] = 1
        self.refresh()

    @property
    def shown(self) -> list[Any]:
        """The keys of the rows on the page that is shown."""
        return [self._key(row) for row in self._shown]

    def refresh(self) -> None:
        """The rows as they are now; nothing is sent if nothing has changed."""
        rows = list(self._rows())
        self._has_rows = bool(rows)
        most = {
            column.name: max((column.value(row) or 0 for row in rows), default=0) or 1
            for column in self.columns.values()
            if column.kind == "meter"
        }
        rows = [row for row in rows if self._matches(row)]
        sort = self._paging["sortBy"]
        if sort:
            rows.sort(key=self.columns[sort].order, reverse=bool(self._paging["descending"]))
        size = int(self._paging["rowsPerPage"])
        pages = max(1, -(-len(rows) // size))
        page = min(int(self._paging["page"]), pages)
        self._shown = rows[(page - 1) * size : page * size]
        shown = [self._cells(row, most) for row in self._shown]
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

    def _cells(self, row: object, most: Mapping[str, float]) -> dict[str, Any]:
        """What the browser gets of a row."""
        cells: dict[str, Any] = {"row_key": self._key(row)}
        for name, column in self.columns.items():
            cells[name] = self.sparks.get(cells["row_key"], "") if column.kind == "spark" else column.text(row)
            if column.kind == "meter":
                cells[f"{name}_share"] = round(100 * (column.value(row) or 0) / most[name])
            elif column.kind in _MORE:
                cells[f"{name}_{_MORE[column.kind]}"] = column.more(row) if column.more else cells["row_key"]
        return cells

    def _matches(self, row: object) -> bool:
        if not self._filter:
            return True
        texts = [self._key(row), *(column.text(row) for column in self.columns.values() if column.kind != "spark")]
        return any(self._filter in str(text).lower() for text in texts)

    def _asked(self, event: GenericEventArguments) -> object:
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

    def _opened(self, key: object, on_open: Callable[[Any], object]) -> object:
        row = next((row for row in self._shown if self._key(row) == key), None)
        return on_open(row) if row is not None else None

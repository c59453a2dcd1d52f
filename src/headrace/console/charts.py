"""Charts over time, drawn by ECharts. Colours that read on both themes; no motion; axes with units.

The formatters are functions in JavaScript, written here and nowhere else; names that people have given appear as data.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from nicegui import ui

from headrace.monitor import Ownership, Point

if TYPE_CHECKING:
    from headrace.console.sql import ResultView

Unit = Literal["count", "rate", "bytes", "byte_rate", "seconds"]

BLUE, TEAL, AMBER, RED, VIOLET = "#2b8fd0", "#15a394", "#d29a20", "#d9534a", "#8a6bdc"
PALETTE = (BLUE, TEAL, VIOLET, AMBER, RED, "#6aa84f", "#c86fa8", "#7a8899")
_AXIS = "#8894a2"
_GRID = "rgba(136, 148, 162, 0.18)"

_SCALED = "const u=['','k','M','G','T'];let i=0,x=Math.abs(v);while(x>=1000&&i<4){x/=1000;i++};const s=(v<0?'-':'')+"
_NUMBER = "(i==0?(+x.toFixed(x<10?1:0)).toLocaleString('en'):(x<100?+x.toPrecision(3):x.toFixed(0)))"
_FORMATS: dict[Unit, str] = {
    "count": f"(v)=>{{{_SCALED}{_NUMBER}+(u[i]?' '+u[i]:'');return s}}",
    "rate": f"(v)=>{{{_SCALED}{_NUMBER}+(u[i]?' '+u[i]:'')+' /s';return s}}",
    "bytes": f"(v)=>{{{_SCALED}{_NUMBER}+' '+u[i]+'B';return s}}",
    "byte_rate": f"(v)=>{{{_SCALED}{_NUMBER}+' '+u[i]+'B/s';return s}}",
    "seconds": "(v)=>v<1&&v>0?Math.round(v*1000)+' ms':v<120?(+v.toFixed(1))+' s':Math.round(v/60)+' min'",
}

#: How far back a chart looks: seconds by what the switch says.
RANGES = {"5 min": 300, "15 min": 900, "1 h": 3600, "6 h": 6 * 3600, "24 h": 24 * 3600, "7 d": 7 * 24 * 3600}
FIRST_RANGE = "5 min"


@dataclass(frozen=True)
class Line:
    """One line of a chart."""

    name: str
    points: Sequence[Point]
    colour: str = BLUE
    area: bool = True


class TimeChart:
    """Lines over time; the right edge is now."""

    def __init__(self, unit: Unit, *, classes: str = "chart", label: str = "") -> None:
        self._chart = ui.echart(_options(unit), renderer="svg").classes(classes)
        self._chart._props["role"] = "img"
        self._chart._props["aria-label"] = label

    def show(self, lines: Sequence[Line], range_s: float, marks: Sequence[tuple[float, str, str]] = ()) -> None:
        """`marks` are moments: time, colour and words."""
        now = time.time()
        options = self._chart.options
        options["xAxis"]["min"] = int((now - range_s) * 1000)
        options["xAxis"]["max"] = int(now * 1000)
        options["legend"]["show"] = len(lines) > 1
        options["grid"]["top"] = 34 if len(lines) > 1 else 14
        options["series"] = [_line(line, marks if at == 0 else ()) for at, line in enumerate(lines)]
        self._chart.update()


def _line(line: Line, marks: Sequence[tuple[float, str, str]]) -> dict[str, object]:
    series: dict[str, object] = {
        "type": "line",
        "name": line.name,
        "data": [[at, value] for at, value in line.points],
        "showSymbol": False,
        "symbolSize": 5,
        "lineStyle": {"width": 1.8, "color": line.colour},
        "itemStyle": {"color": line.colour},
        "connectNulls": False,
    }
    if line.area:
        series["areaStyle"] = {"color": line.colour, "opacity": 0.1}
    if marks:
        series["markLine"] = {
            "silent": True,
            "symbol": "none",
            "label": {"show": False},
            "data": [
                {
                    "xAxis": int(at * 1000),
                    "lineStyle": {"color": colour, "type": "solid", "width": 1.2, "opacity": 0.75},
                }
                for at, colour, _ in marks
            ],
        }
    return series


def _options(unit: Unit) -> dict[str, Any]:
    label = {"color": _AXIS, "fontSize": 11.5}
    return {
        "animation": False,
        "textStyle": {"fontFamily": "system-ui, sans-serif"},
        "grid": {"left": 8, "right": 14, "top": 34, "bottom": 6, "containLabel": True},
        "legend": {
            "top": 0,
            "left": 0,
            "icon": "roundRect",
            "itemWidth": 12,
            "itemHeight": 4,
            "textStyle": {"color": _AXIS},
        },
        "tooltip": {
            "trigger": "axis",
            "confine": True,
            "backgroundColor": "#222b35",
            "borderWidth": 0,
            "textStyle": {"color": "#fff", "fontSize": 12},
            "axisPointer": {"lineStyle": {"color": _AXIS, "type": "dashed"}},
            ":valueFormatter": f"(v)=>v==null?'-':({_FORMATS[unit]})(v)",
        },
        "xAxis": {
            "type": "time",
            "axisLine": {"lineStyle": {"color": _GRID}},
            "axisTick": {"show": False},
            "axisLabel": {**label, "hideOverlap": True},
            "splitLine": {"show": False},
        },
        "yAxis": {
            "type": "value",
            "min": 0,
            "minInterval": 1 if unit == "count" else None,
            "axisLabel": {**label, ":formatter": _FORMATS[unit]},
            "splitLine": {"lineStyle": {"color": _GRID}},
            "splitNumber": 4,
        },
        "series": [],
    }


class ResultChart:
    """The result of a query: the first column of times or texts along the axis, numbers as lines or bars."""

    def __init__(self, found: ResultView) -> None:
        along, numbers = self._chosen(found)
        is_time = found.columns[along].kind == "time"
        options = _options("count")
        options["yAxis"] |= {"min": None, "minInterval": None, "scale": is_time}
        if not is_time:
            label = {"color": _AXIS, "fontSize": 11.5, "hideOverlap": True}
            options["xAxis"] = {"type": "category", "axisTick": {"show": False}, "axisLabel": label}
            options["xAxis"]["data"] = [str(row[along]) for row in found.rows]
        options["legend"]["type"] = "scroll"
        options["series"] = [
            {
                "type": "line" if is_time else "bar",
                "name": found.columns[at].name,
                "showSymbol": False,
                "itemStyle": {"color": PALETTE[number % len(PALETTE)]},
                "data": [[row[along], _number(row[at])] if is_time else _number(row[at]) for row in found.rows],
            }
            for number, at in enumerate(numbers)
        ]
        chart = ui.echart(options, renderer="svg").classes("chart")
        names = ", ".join(found.columns[at].name for at in numbers)
        chart._props["role"] = "img"
        chart._props["aria-label"] = f"{names} by {found.columns[along].name}"

    @classmethod
    def can_show(cls, found: ResultView) -> bool:
        along, numbers = cls._chosen(found)
        return along >= 0 and bool(numbers) and len(found.rows) > 1

    @staticmethod
    def _chosen(found: ResultView) -> tuple[int, list[int]]:
        """Which column goes along the axis, and which are drawn. Without times or texts it is the first number."""
        kinds = [column.kind for column in found.columns]
        along = next((at for at, kind in enumerate(kinds) if kind in {"time", "text"}), -1)
        numbers = [at for at, kind in enumerate(kinds) if kind == "number"]
        if along < 0 and len(numbers) > 1:
            along, *numbers = numbers
        return along, numbers[: len(PALETTE)]


def _number(value: object) -> float | None:
    """Decimals are text; what JSON has no number for leaves a gap."""
    try:
        found = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return found if math.isfinite(found) else None


class OwnerChart:
    """Who owned which partition when: a row for each partition, a colour for each client."""

    def __init__(self) -> None:
        self._chart = ui.echart(_owner_options(), renderer="svg").classes("chart")
        self._shown: object = None

    def set_visibility(self, visible: bool) -> None:
        self._chart.set_visibility(visible)

    def show(self, owned: Sequence[Ownership], range_s: float) -> None:
        now = time.time()
        topics = sorted({o.topic for o in owned})
        places = sorted({(o.topic, o.partition) for o in owned}, reverse=True)
        rows = {place: at for at, place in enumerate(places)}
        names = [f"{t}/{p}" if len(topics) > 1 else str(p) for t, p in places]
        clients = sorted({(o.client_id, o.member_id) for o in owned})
        options = self._chart.options
        options["xAxis"]["min"], options["xAxis"]["max"] = int((now - range_s) * 1000), int(now * 1000)
        options["yAxis"]["data"] = names
        options["series"] = [
            {
                "type": "line",
                "name": _client_name(client, member, clients),
                "lineStyle": {"width": 11, "cap": "butt", "color": PALETTE[at % len(PALETTE)]},
                "itemStyle": {"color": PALETTE[at % len(PALETTE)]},
                "showSymbol": False,
                "connectNulls": False,
                "data": _bars(
                    [o for o in owned if (o.client_id, o.member_id) == (client, member)], rows, now - range_s, now
                ),
            }
            for at, (client, member) in enumerate(clients[:40])
        ]
        self._chart.style(f"height: {min(520, 90 + 22 * max(3, len(places)))}px")
        self._chart.update()


def _client_name(client: str, member: str, clients: Sequence[tuple[str, str]]) -> str:
    """The client's name; where several members have the same, with the end of the member's id."""
    alike = sum(name == client for name, _ in clients)
    return client if alike == 1 else f"{client} …{member[-4:]}"


def _bars(owned: Sequence[Ownership], rows: Mapping[tuple[str, int], int], first: float, now: float) -> list[object]:
    data: list[object] = []
    for o in owned:
        row = rows[o.topic, o.partition]
        data += [[int(max(o.since, first) * 1000), row], [int((o.until or now) * 1000), row], [None, None]]
    return data


@dataclass(frozen=True)
class FlowNode:
    """A node of a picture of data that flows from left to right; `inputs` are ids of other nodes."""

    id: str
    name: str
    kind: str
    level: int
    inputs: Sequence[str]


class FlowChart:
    """Nodes in columns by their level, with arrows from what each is made from."""

    _COLOURS: ClassVar[dict[str, str]] = {"topic": BLUE, "pipeline": AMBER, "table": TEAL, "view": VIOLET}
    _ROW_PX = 46

    def __init__(self) -> None:
        self._chart = ui.echart({"animation": False, "series": []}, renderer="svg").classes("chart")
        self._chart._props["role"] = "img"

    def show(self, nodes: Sequence[FlowNode], label: str) -> None:
        """`label` is what the picture shows, in words."""
        self._chart._props["aria-label"] = label
        rows: dict[int, int] = {}
        data = []
        for node in nodes:
            row = rows[node.level] = rows.get(node.level, -1) + 1
            data.append(
                {
                    "id": node.id, "name": node.name, "value": [node.level, row],
                    "itemStyle": {"color": self._COLOURS[node.kind]},
                    "symbol": "circle" if node.kind in {"topic", "pipeline"} else "rect",
                }
            )  # fmt: skip
        self._chart.options["series"] = [
            {
                # On axes: by itself a graph is stretched to its place, nodes included.
                "type": "graph", "coordinateSystem": "cartesian2d", "symbolSize": 16, "silent": True,
                "edgeSymbol": ["none", "arrow"], "edgeSymbolSize": 8, "data": data,
                "label": {"show": True, "position": "bottom", "color": _AXIS, "fontSize": 11.5},
                "links": [{"source": other, "target": node.id} for node in nodes for other in node.inputs],
                "lineStyle": {"color": _AXIS, "width": 1.4, "curveness": 0.08},
            }
        ]  # fmt: skip
        hidden, last = {"show": False, "type": "value", "min": 0}, max([*rows.values(), 1])
        # Arrows over several columns are arcs: they need room above.
        self._chart.options["grid"] = {"left": 60, "right": 60, "top": 44, "bottom": 34}
        self._chart.options["xAxis"] = {**hidden, "max": max([*rows, 1])}
        self._chart.options["yAxis"] = {**hidden, "max": last, "inverse": True}
        self._chart.style(f"height: {110 + self._ROW_PX * last}px")
        self._chart.update()


def _owner_options() -> dict[str, Any]:
    options = _options("count")
    options["yAxis"] = {
        "type": "category",
        "data": [],
        "axisLine": {"show": False},
        "axisTick": {"show": False},
        "axisLabel": {"color": _AXIS, "fontSize": 11.5},
        "splitLine": {"show": True, "lineStyle": {"color": _GRID}},
    }
    options["legend"]["type"] = "scroll"
    options["tooltip"] = {"show": False}
    return options

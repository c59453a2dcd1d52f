"""Pictures: drawn by matplotlib without a screen, once for light pages and once for dark ones, as SVG.

matplotlib is loaded here and only when a picture is drawn. The experiment fills an empty figure and need not care for
colours of axes and text; the colours of data come from `COLOURS`, which can be distinguished on both grounds and with
red-green colour blindness.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Figure
else:
    Figure = Any  # matplotlib takes a while to load

COLOURS = ("#3b82c4", "#e08a2e", "#2f9e6e", "#c2528b", "#8a6fd1", "#b5a642", "#5aa9a6", "#d1605e")
RED, BLUE, GREEN, ORANGE = "#d1495b", "#3b82c4", "#2f9e6e", "#e08a2e"
GREY = "#8d96a0"

_WIDTH = 7.6
# pyplot's state is global, and labs may draw side by side.
_ONE_AT_A_TIME = threading.Lock()
_COMMON: dict[str, object] = {
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.6,
    "figure.constrained_layout.use": True,
    "svg.hashsalt": "headrace",
}
_GROUNDS = {
    "light": {"text": "#1f2328", "axis": "#59636e", "grid": "#e4e8ec", "ground": "#ffffff"},
    "dark": {"text": "#e6edf3", "axis": "#9198a1", "grid": "#2c333c", "ground": "#151b23"},
}


def render(folder: Path, name: str, draw: Callable[[Figure], None], height: float) -> dict[str, str]:
    """The picture is in the folder for light and for dark; the names of its files."""
    import matplotlib as mpl
    from cycler import cycler
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    files: dict[str, str] = {}
    with _ONE_AT_A_TIME:
        for ground, colours in _GROUNDS.items():
            style: Any = {
                **_COMMON,
                "axes.prop_cycle": cycler(color=COLOURS),
                "text.color": colours["text"],
                "axes.labelcolor": colours["text"],
                "axes.titlecolor": colours["text"],
                "axes.edgecolor": colours["axis"],
                "xtick.color": colours["axis"],
                "ytick.color": colours["axis"],
                "grid.color": colours["grid"],
                **{f"boxplot.{part}props.color": colours["axis"] for part in ("box", "whisker", "cap")},
                "boxplot.flierprops.markeredgecolor": colours["axis"],
                "axes.facecolor": colours["ground"],
                "figure.facecolor": colours["ground"],
                "savefig.facecolor": colours["ground"],
            }
            with mpl.rc_context(style):
                figure = Figure(figsize=(_WIDTH, height))
                draw(figure)
                file = f"{name}.{ground}.svg"
                _save(FigureCanvasSVG(figure), folder / file)
                files[ground] = file
    return {"name": name, **files}


def _save(canvas: Any, file: Path) -> None:
    # Without the date, so that the same picture is the same file.
    file.touch(mode=0o600)
    canvas.print_svg(file, metadata={"Date": None, "Creator": None})

"""Pictures, drawn by matplotlib as SVG that stands in the page and takes its colours from there.

A picture is drawn in stand-in colours, one for each name of `_COLOURS`; in the SVG they become the page's
`var(--name)`, so that one drawing is right in light and in dark.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

__all__ = ["Picture", "draw"]


@dataclass(frozen=True)
class Picture:
    """A picture with its title and caption; `command` makes what it is drawn from."""

    name: str
    title: str
    caption: str
    command: str
    svg: str


_COLOURS: Final = {
    name: f"#00010{at:x}"
    for at, name in enumerate(
        (
            *("paper", "text", "soft", "line", "raised"),
            *("pass", "pass-text", "violated", "violated-text", "unguarded", "unguarded-text"),
            *("chart-1", "chart-2", "chart-3", "chart-4"),
        )
    )
}
"""Colour of the page -> its stand-in in a drawing."""


def draw(path: Path) -> list[Picture]:
    """Draw what a file of JSON holds: what `gridpact bench --json` wrote, or one of the demonstrations.

    Raises
    ------
    ValueError
        There is no such file, or it holds something else.
    """
    try:
        told = json.loads(path.read_bytes())
        kind = told.get("kind", "cost")
        return [_DRAWN[kind](told, path.stem)]
    except OSError as error:
        raise ValueError(f"{path}: expected a file of JSON: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        rule = "expected what gridpact bench --json or gridpact.conformance.page.demonstration writes"
        raise ValueError(f"{path}: {rule}: {type(error).__name__}: {error}.") from error


def _figure(name: str, size: tuple[float, float], paint: Callable[[Any], None], alternative: str) -> str:
    """Draw one figure and give its SVG; the same drawing is the same text."""
    import matplotlib
    from matplotlib.rcsetup import cycler

    colour = _COLOURS
    style = {
        "svg.fonttype": "none",  # text stays text, in the page's font
        "svg.hashsalt": name,
        "text.parse_math": False,
        "font.family": "sans-serif",
        "font.size": 9,
        "axes.prop_cycle": cycler(color=[colour[f"chart-{i}"] for i in (1, 2, 3, 4)]),
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.frameon": False,
        **dict.fromkeys(("text.color", "axes.labelcolor", "axes.titlecolor"), colour["text"]),
        **dict.fromkeys(("xtick.color", "ytick.color"), colour["soft"]),
        "axes.edgecolor": colour["line"],
        "axes.facecolor": "none",
    }
    with matplotlib.rc_context(style):
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure

        figure = Figure(figsize=size, layout="constrained", facecolor="none")
        FigureCanvasSVG(figure)
        paint(figure)
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    return _inline(file.getvalue(), name, alternative)


def _inline(svg: str, name: str, alternative: str) -> str:
    """Make a document of SVG part of a page: colours of the page, ids of its own, and a text that tells what it is."""
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    for colour, stand_in in _COLOURS.items():
        svg = svg.replace(stand_in, f"var(--{colour})")
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", svg)
    label = re.sub(r'[<>&"]', lambda found: f"&#{ord(found[0])};", alternative)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1).strip()


# -------------------------------------------------------------------------------------------------------- program grid

_RIGHT, _MISSING, _TWICE, _WRONG = range(4)
_ARRIVED: Final = {
    _RIGHT: ("arrived once, right", "·", "pass"),
    _MISSING: ("missing", "-", "unguarded"),
    _TWICE: ("arrived twice", "2", "chart-2"),
    _WRONG: ("wrong coordinates", "w", "violated"),
}
"""What arrived at a place -> what it is called, its sign, its colour."""


def _judge(seen: Sequence[int], due: Sequence[int]) -> int:
    """Say what arrived at a place: its count, its coordinates and the grid that its program saw."""
    if seen[0] <= 0:
        return _MISSING
    return _TWICE if seen[0] > 1 else _RIGHT if list(seen[1:]) == list(due) else _WRONG


def _draw_grid(told: dict[str, Any], name: str) -> Picture:
    width, height, depth = told["grid"]
    due = [(x, y, z, width, height, depth) for z in range(depth) for y in range(height) for x in range(width)]
    panels = [("due", "what was asked for", [_RIGHT] * len(due), 0)]
    for launcher in told["launchers"]:
        arrived = [_judge(seen, wanted) for seen, wanted in zip(launcher["programs"], due, strict=True)]
        panels.append((launcher["told"], launcher["subject"], arrived, launcher["elsewhere"]))

    def paint(figure: Any) -> None:
        from matplotlib.colors import BoundaryNorm, ListedColormap
        from matplotlib.patches import Patch

        palette = ListedColormap([_COLOURS[colour] for _, _, colour in _ARRIVED.values()])
        axes = figure.subplots(depth, len(panels), sharex=True, sharey=True, squeeze=False)
        for column, (title, of, arrived, elsewhere) in enumerate(panels):
            for z in range(depth):
                plane = axes[z][column]
                cells = arrived[z * width * height : (z + 1) * width * height]
                rows = [cells[y * width : (y + 1) * width] for y in range(height)]
                plane.pcolormesh(rows, cmap=palette, norm=BoundaryNorm([0, 1, 2, 3, 4], 4),
                                 edgecolor=_COLOURS["paper"], linewidth=1.5)  # fmt: skip
                for at, what in enumerate(cells):
                    ink = _COLOURS["paper" if what == _TWICE else "text"]
                    place = (at % width + 0.5, at // width + 0.5)
                    plane.text(*place, _ARRIVED[what][1], ha="center", va="center", color=ink, fontsize=8)
                plane.set_aspect("equal")
                plane.invert_yaxis() if not (z or column) else None  # y grows downwards; axes are shared
                plane.tick_params(length=0, labelsize=7)
                plane.set_xticks([x + 0.5 for x in range(width)], range(width))
                plane.set_yticks([y + 0.5 for y in range(height)], range(height))
                for spine in plane.spines.values():
                    spine.set_visible(False)
                if column == 0:
                    plane.set_ylabel(f"z = {z}\ny")
                if z == depth - 1:
                    lost = f"\n{elsewhere} wrote elsewhere" if elsewhere else ""
                    plane.set_xlabel(f"x{lost}")
            count = sum(what == _RIGHT for what in arrived)
            axes[0][column].set_title(f"{title}\n{of}\n{count} of {len(due)} right", fontsize=8.5)
        patches = [
            Patch(facecolor=_COLOURS[colour], edgecolor=_COLOURS["line"], label=f"{sign}  {what}")
            for what, sign, colour in _ARRIVED.values()
        ]
        figure.legend(handles=patches, loc="outside lower center", ncols=4)

    told_right = "; ".join(f"{title}: {sum(w == _RIGHT for w in arrived)} right" for title, _, arrived, _ in panels[1:])
    return Picture(
        "grid",
        f"The program grid {width} x {height} x {depth}, plane by plane",
        "Each cell is a program, coloured by what it wrote at its own place of poisoned memory: its count, its "
        "coordinates and the grid that it saw. On the left what is due, beside it what arrived with our launcher and "
        "with launchers that are broken on purpose.",
        told["command"],
        _figure(name, (1.95 * len(panels), 1.45 * depth + 1.1), paint, f"Program grid: {told_right}."),
    )


# ------------------------------------------------------------------------------------------------------------- streams


def _draw_streams(told: dict[str, Any], name: str) -> Picture:
    runs = told["runs"]

    def paint(figure: Any) -> None:
        for axes, run in zip(figure.subplots(1, len(runs), squeeze=False)[0], runs, strict=True):
            _draw_order(axes, run, told)

    value = runs[-1]["after"]["reader"]
    return Picture(
        "streams",
        "Two streams, without the event and with it",
        f"A kernel on stream A is held on a flag of the host, then it writes {told['written']} over {told['old']}; "
        "another on stream B reads. What each had done was looked at before and after the flag was raised, on "
        f"{told['subject']}. From left to right is order, not time.",
        told["command"],
        _figure(name, (10, 2.6), paint, f"Two streams: with the event the reader on B waits for A and reads {value}."),
    )


def _draw_order(axes: Any, run: dict[str, Any], told: dict[str, Any]) -> None:
    """Draw one run: a lane for each stream, and the moment at which the flag is raised."""
    colour = _COLOURS
    reader = run["held"]["reader"]
    has_read_before = reader is not None
    begin, length = (0.15, 0.7) if has_read_before else (1.45, 0.45)
    read = run["after"]["reader"]
    is_new = read == told["written"]
    lanes = (
        (1, [(0, 1.0)], "raised", "soft", "held on the flag"),
        (1, [(1.0, 0.35)], "chart-2", "paper", f"writes {told['written']}"),
        (0, [(begin, length)], "pass" if is_new else "violated", "text", f"reads {read}"),
    )
    for lane, spans, face, ink, text in lanes:
        axes.broken_barh(spans, (lane - 0.28, 0.56), facecolor=colour[face], edgecolor=colour["soft"], linewidth=0.8)
        at = spans[0][0] + spans[0][1] / 2
        axes.text(at, lane, text, ha="center", va="center", color=colour[ink], fontsize=8.5)
    axes.axvline(1.0, color=colour["chart-4"], linestyle="--", linewidth=1.2)
    axes.text(1.0, 1.62, "flag is raised", ha="center", va="bottom", color=colour["chart-4"], fontsize=8.5)
    if run["event"]:
        arrow = {"arrowstyle": "-|>", "color": colour["text"], "linewidth": 1.2}
        axes.annotate("", (1.45, 0.1), (1.35, 0.75), arrowprops=arrow)
        axes.text(1.5, 0.5, "event", va="center", color=colour["text"], fontsize=8.5)
    axes.set_title(
        f"{'with' if run['event'] else 'without'} the event: the {'new' if is_new else 'old'} value",
        fontsize=9.5,
        pad=18,
    )
    axes.set(xlim=(-0.02, 2), ylim=(-0.5, 1.6), xticks=[])
    axes.set_yticks([1, 0], ["stream A", "stream B"])
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


# ---------------------------------------------------------------------------------------------------------------- cost


def _draw_cost(told: dict[str, Any], name: str) -> Picture:
    from gridpact import bench

    rows = [bench.Cost(**row) for row in told["rows"]]
    versions = ", ".join(f"{what} {version}" for what, version in told["versions"].items())

    tritons = [other["versions"]["triton"] for other in told["beside"]]
    others = f" Triton is the fastest of {', '.join(tritons)}." if tritons else ""

    def paint(figure: Any) -> None:
        bench.draw(figure.subplots(), rows, told["beside"])

    drawn = ", ".join(f"{row.what} {row.us:.3g}" for row in rows if row.arguments == "4" and row.what in bench.DRAWN)
    return Picture(
        f"cost-{told['device'].replace(':', '-')}",
        f"Launch cost on {told['device']}, by number of arguments",
        f"Medians of the host time of one launch, microseconds, beside the driver's own call.{others} "
        f"{told['machine']}; {versions}.",
        told["command"],
        _figure(f"cost-{name}", (9, 3.6), paint, f"Launch cost in microseconds with 4 arguments: {drawn}."),
    )


# ------------------------------------------------------------------------------------------------------------- mapping


def _draw_mapping(told: dict[str, Any], name: str) -> Picture:
    """Draw a column for each of the driver's words; lines follow an axis from the program grid."""
    columns = [("program grid", "xyz", told["programs"], "programs")]
    for target in told["targets"]:
        for words, counts in target["geometry"].items():
            if words == "cluster" and max(counts) == 1:
                continue
            axes = "zyx" if "zyx" in words.replace(", ", "") else "xyz"
            unit = {"grid": "blocks", "block": "threads", "cluster": "blocks"}.get(words, "work-items")
            columns.append((f"{target['target']}\n{words.partition(' (')[0]}", axes, counts, unit))
    ink = dict(zip("xyz", ("chart-2", "chart-4", "soft"), strict=True))
    dashes = dict(zip("xyz", ("-", "--", ":"), strict=True))

    def paint(figure: Any) -> None:
        plot = figure.subplots()
        for axis in "xyz":
            heights = [-axes.index(axis) for _, axes, _, _ in columns]
            plot.plot(range(len(columns)), heights, color=_COLOURS[ink[axis]], linestyle=dashes[axis], linewidth=1.6)
        for at, (title, axes, counts, unit) in enumerate(columns):
            for place, (axis, count) in enumerate(zip(axes, counts, strict=True)):
                box = {"boxstyle": "round,pad=0.35", "facecolor": _COLOURS["raised"], "edgecolor": _COLOURS[ink[axis]]}
                text = f"{axis}  {count:,}"
                plot.text(at, -place, text, ha="center", va="center", color=_COLOURS["text"], bbox=box, fontsize=10)
            plot.text(at, 0.55, title, ha="center", va="bottom", color=_COLOURS["text"], fontsize=9.5)
            plot.text(at, -2.55, unit, ha="center", va="top", color=_COLOURS["soft"], fontsize=8.5)
        plot.set(xlim=(-0.5, len(columns) - 0.5), ylim=(-2.9, 1.15))
        plot.set_axis_off()

    told_all = "; ".join(
        f"{title} ({', '.join(axes)}) {tuple(counts)}".replace("\n", " ") for title, axes, counts, _ in columns
    )
    return Picture(
        "mapping",
        "One launch in three vocabularies",
        f"{told['kernel']}, {told['threads']} threads a program, as each driver would be called: CUDA counts blocks, "
        "and their threads apart; SYCL counts work-items, programs times threads, and names its axes in reverse.",
        told["command"],
        _figure(name, (9.5, 2.9), paint, told_all),
    )


_DRAWN: Final[dict[str, Callable[[dict[str, Any], str], Picture]]] = {
    "grid": _draw_grid,
    "streams": _draw_streams,
    "mapping": _draw_mapping,
    "cost": _draw_cost,
}

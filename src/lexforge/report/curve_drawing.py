"""Curves of a measure over a cost, drawn as an SVG that needs neither a script nor a font of its own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from lexforge.report.charts import COLOURS

WIDTH, HEIGHT = 420, 300  # pixels of a panel
LEFT, RIGHT, TOP, BOTTOM = 58, 16, 34, 46  # its margins
LEGEND = 30  # pixels above the panels
TEXT, GRID = "#24292f", "#d8dee4"
MARKS = ("circle", "square", "triangle")


@dataclass(frozen=True)
class Panel:
    """One coordinate system of a drawing; its horizontal axis has a logarithmic scale.

    Args:
        title: Its heading.
        x_label: What the horizontal axis shows.
        y_label: What the vertical axis shows.
        curves: Name -> points `(x, y)` with x > 0, which are joined in the order of x.
        single: Name -> one point that is drawn beside the curves, such as the start.
    """

    title: str
    x_label: str
    y_label: str
    curves: Mapping[str, Sequence[tuple[float, float]]]
    single: Mapping[str, tuple[float, float]]


def draw_curves(title: str, panels: Sequence[Panel], text: str) -> str:
    """Draw panels side by side, with one legend for all.

    Args:
        title: The heading of the drawing.
        panels: At least one, which share the names of their curves.
        text: A text alternative for readers who do not see the drawing.

    Returns:
        The drawing as SVG.

    Raises:
        ValueError: If a point has no place on a logarithmic scale.
    """
    width, height = WIDTH * len(panels), LEGEND + TOP + HEIGHT
    names = [*panels[0].curves, *panels[0].single]
    colours = dict(zip(names, (*COLOURS[: len(panels[0].curves)], *COLOURS[::-1]), strict=False))
    marks = dict(zip(panels[0].curves, MARKS, strict=False))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" font-family="system-ui, sans-serif" font-size="12" '
        f'fill="{TEXT}">',
        f"<title>{escape(title)}</title><desc>{escape(text)}</desc>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="20" font-size="14" font-weight="600">{escape(title)}</text>',
    ]
    place = float(LEFT)
    for name in names:
        parts.append(_mark(place + 5, 38, colours[name], marks.get(name, "circle")))
        parts.append(f'<text x="{place + 14:.0f}" y="42">{escape(name)}</text>')
        place += 34 + 6.6 * len(name)  # about the width of its letters
    for number, panel in enumerate(panels):
        inside = _panel(panel, colours, marks)
        parts.append(f'<g transform="translate({number * WIDTH} {LEGEND + TOP})">{inside}</g>')
    return "\n".join([*parts, "</svg>\n"])


def _panel(panel: Panel, colours: Mapping[str, str], marks: Mapping[str, str]) -> str:
    """One coordinate system with its axes and curves."""
    points = [point for curve in panel.curves.values() for point in curve] + list(panel.single.values())
    if not all(x > 0 and math.isfinite(x) and math.isfinite(y) for x, y in points):
        raise ValueError(f"{panel.title}: a point needs finite numbers and x > 0; received {points}")
    first, last = min(x for x, _ in points) * 0.93, max(x for x, _ in points) * 1.07
    step = _step(max(y for _, y in points) - min(y for _, y in points))
    low = step * math.floor(min(y for _, y in points) / step)
    high = max(step * math.ceil(max(y for _, y in points) / step), low + step)

    def x_place(x: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log(x / first) / math.log(last / first)

    def y_place(y: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * (y - low) / (high - low)

    middle = (LEFT + WIDTH - RIGHT) / 2
    parts = [f'<text x="{LEFT}" y="18" font-weight="600">{escape(panel.title)}</text>']
    for count in range(round((high - low) / step) + 1):
        y = y_place(low + count * step)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="{GRID}"/>')
        label = f"{low + count * step:.{max(0, -math.floor(math.log10(step)))}f}"
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    for tick in _ticks(first, last) or sorted({min(x for x, _ in points), max(x for x, _ in points)}):
        x = x_place(tick)
        parts.append(f'<path d="M{x:.1f} {HEIGHT - BOTTOM}v4" stroke="{TEXT}"/>')
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 17}" text-anchor="middle">{tick:g}</text>')
    parts.append(
        f'<text x="{middle}" y="{HEIGHT - 10}" text-anchor="middle">{escape(panel.x_label)}</text>'
        f'<text transform="translate(14 {(HEIGHT - BOTTOM + TOP) / 2}) rotate(-90)" text-anchor="middle">'
        f"{escape(panel.y_label)}</text>"
    )
    for name, curve in panel.curves.items():
        places = [(x_place(x), y_place(y)) for x, y in sorted(curve)]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colours[name]}" stroke-width="2"/>')
        parts += [_mark(x, y, colours[name], marks[name]) for x, y in places]
    for name, (x, y) in panel.single.items():
        parts.append(_mark(x_place(x), y_place(y), colours[name], "circle"))
    return "".join(parts)


def _mark(x: float, y: float, colour: str, shape: str) -> str:
    """A mark at a place; its shape tells the curves apart without their colours."""
    if shape == "square":
        return f'<rect x="{x - 3.5:.1f}" y="{y - 3.5:.1f}" width="7" height="7" fill="{colour}"/>'
    if shape == "triangle":
        return f'<path d="M{x:.1f} {y - 5:.1f}l4.5 8h-9z" fill="{colour}"/>'
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>'


def _step(reach: float) -> float:
    """The distance of the lines of a scale: 1, 2 or 5 times a power of ten, four to ten lines in all."""
    power: float = 10.0 ** math.floor(math.log10(max(reach, 1e-6)))
    return next(power * factor for factor in (0.2, 0.5, 1, 2) if reach / (power * factor) <= 6)


def _ticks(first: float, last: float) -> list[float]:
    """The numbers 1, 2 and 5 times a power of ten on a logarithmic scale, or powers of ten where many fit."""
    powers = range(math.floor(math.log10(first)), math.ceil(math.log10(last)) + 1)
    factors = (1, 2, 5) if last < 1000 * first else (1,)
    numbers = [factor * 10.0**power for power in powers for factor in factors]
    return [number for number in numbers if first <= number <= last]

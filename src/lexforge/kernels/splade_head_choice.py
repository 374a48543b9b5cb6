"""Which screens the SPLADE head tries on this processor, and up to which density: measured.

Whether a narrow product pays depends on the processor, the width and the batch: some processors have
instructions for bfloat16 or 8 bits that are no faster than those for float32, or only in large products.
So at the first batch of a kind the head times each way on parts of that kind with random numbers,
once with nothing active and once with 1/16 of the pairs. The two times give a line over the density for
each way, and where the lines cross a screen should hand over to the next way. That takes .1 to .3 seconds,
once: it is kept in the user's cache for this processor, this version of torch and this number of threads.

All ways find the float32 maxima and winners, so processes that choose differently agree as two processors
agree, whose float32 sums end in other last digits: ranks need not choose together. The screens among
themselves give the same bits. `LEXFORGE_SPLADE_HEAD=float32` gives those of the plain product everywhere.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from lexforge.common.cache import cache_folder
from lexforge.common.files import write_file
from lexforge.common.processor import processor_name
from lexforge.kernels.splade_head_plain import plain_maximum
from lexforge.kernels.splade_head_screening import (
    Groups,
    Maxima,
    find_candidates,
    screened_maximum,
    term_side,
    token_side,
)
from lexforge.kernels.splade_head_screens import SCREENS, Narrow, Screen, is_exact

logger = logging.getLogger(__name__)

VARIABLE = "LEXFORGE_SPLADE_HEAD"
WAYS = ("float32", *SCREENS)
FORMAT = 1  # of the cached file; raised when the measurement or the screens change
_LEAST_WORK = 2**28  # multiplications of a batch; below, a screen saves less than a millisecond
_TERMS = 4096  # of the tile that is timed: half of the head's, because both costs grow with it alike
_MOST_TOKENS = 256  # of a part
_ACTIVE = 1 / 16  # share of active pairs in the second timing
_REPEATS = 3
_PARTS = (1, 3)  # parts of a tile: the difference of the two times is free of what a call costs once
_GAIN = 0.95  # a screen must save this much, or the plain product is taken
_MOST_SHARE = 0.5  # of possible pairs: no screen pays above, whatever was measured on a busy machine
_MOST_PAIRS = 0.25  # for a way that is named and not measured
Name = TypeVar("Name")
_KNOWN: dict[str, dict[str, dict[str, Cost]]] = {}  # machine -> kind of batch -> way; filled when it is used


class Cost(NamedTuple):
    """Seconds of one way on one part of a tile."""

    terms_s: float  # to narrow the tile's terms, once for all parts of a tile
    part_s: float  # the rest, with nothing active
    active_s: float  # what it takes more with `_ACTIVE` of the pairs active
    possible: float  # share of the pairs that the screen cannot rule out then


def chosen_screens(states: Tensor, weight: Tensor, groups: Groups) -> list[tuple[Screen, float]]:
    """Return the screens to try on a batch, in this order, before the plain product.

    Args:
        states: `[B * L, D]`.
        weight: `[V, D]`.
        groups: Rows and the places of their tokens, as `splade_head_tiled` groups them.

    Returns:
        Screens, each with the share of possibly active pairs above which it refuses a part. None at all for
        anything but float32 on a CPU, and for small batches, which are not worth a measurement.

    Raises:
        ValueError: If the environment variable `LEXFORGE_SPLADE_HEAD` holds anything else than the name of a
            way or "measured", or names a way that this processor does not compute exactly.
    """
    asked = asked_way()
    if states.device.type != "cpu" or not states.dtype == weight.dtype == torch.float32:
        return []
    width = weight.shape[1]
    if asked == "float32" or not groups or not len(weight) or not width:
        return []
    if asked != "measured":
        if not is_exact(SCREENS[asked], width):
            raise ValueError(
                f"{VARIABLE} is {asked!r}, and this processor does not sum products of that format exactly: "
                "leave the variable unset, or set 'float32'"
            )
        return [(SCREENS[asked], _MOST_PAIRS)]
    if sum(places.numel() for _, places in groups) * weight.numel() < _LEAST_WORK:
        return []
    rows, length = groups[0][1].shape
    length = min(_power_of_two(length), _MOST_TOKENS)
    rows = max(1, min(_power_of_two(rows), _MOST_TOKENS // length))
    kind = f"{width} x {min(len(weight), _TERMS)}, {rows} x {length}"
    if kind not in _measured():
        _remember(kind, measure_ways(width, min(len(weight), _TERMS), rows, length))
    costs = _measured()[kind]
    parts_of_tile = sum(places.numel() for _, places in groups) / (rows * length)
    return screens_by_cost(
        {name: costs[name] for name in costs if name == "float32" or is_exact(SCREENS[name], width)},
        parts_of_tile,
    )


def asked_way() -> str:
    """Return what `LEXFORGE_SPLADE_HEAD` asks for: a way, or "measured" where it is not set.

    Raises:
        ValueError: If it holds anything else.
    """
    asked = os.environ.get(VARIABLE) or "measured"
    if asked not in ("measured", *WAYS):
        allowed = ", ".join(map(repr, WAYS))
        raise ValueError(f"{VARIABLE} must be 'measured' or one of {allowed}; received {asked!r}")
    return asked


def screens_by_cost(costs: dict[str, Cost], parts_of_tile: float) -> list[tuple[Screen, float]]:
    """Order the screens that pay by their time with nothing active, each up to where a later way is faster.

    Args:
        costs: Way -> its seconds; "float32" is among them.
        parts_of_tile: Number of parts with which a tile is multiplied, above 0.

    Returns:
        As `chosen_screens`.
    """

    def line(name: str) -> tuple[float, float]:
        """Seconds per part with nothing active, and what `_ACTIVE` of the pairs add."""
        return costs[name].terms_s / parts_of_tile + costs[name].part_s, costs[name].active_s

    plain = line("float32")
    paying = [name for name in costs if name != "float32" and line(name)[0] < _GAIN * plain[0]]
    paying.sort(key=lambda name: line(name)[0])
    chosen = []
    for place, name in enumerate(paying):
        bare, slope = line(name)
        # In units of `_ACTIVE`; lines that never meet leave no density to the later way.
        meetings = [
            (later[0] - bare) / (slope - later[1])
            for later in (line(other) for other in [*paying[place + 1 :], "float32"])
            if slope > later[1]
        ]
        share = min(_MOST_SHARE, costs[name].possible * min(meetings, default=float("inf")))
        chosen.append((SCREENS[name], share))
    return chosen


def measure_ways(width: int, terms: int, rows: int, length: int) -> dict[str, Cost]:
    """Time every way on one part of random numbers.

    Args:
        width: D.
        terms: Terms of the tile.
        rows: Rows of the part.
        length: Tokens of each row.

    Returns:
        Way -> seconds. A format is left out if its product alone is slower than that of float32, or not exact
        on this processor.
    """
    generator = torch.Generator().manual_seed(0)
    flat = torch.randn(rows * length, width, generator=generator)
    some = torch.randn(min(terms, 1024), width, generator=generator) / width**0.5
    weight = some.repeat(-(-terms // len(some)), 1)[:terms].contiguous()
    group = torch.arange(rows), torch.arange(rows * length).view(rows, length)
    groups = [group] * max(_PARTS)
    parts = {count: [(slice(0, terms), index) for index in range(count)] for count in _PARTS}
    maxima = Maxima(torch.full((rows, terms), -torch.inf), None)

    def plain(count: int) -> None:
        plain_maximum(maxima, flat, groups, weight, None, parts[count])

    plain(1)
    top = maxima.maximum[:, : len(some)].flatten()  # of the terms that do not repeat others
    threshold = float(top.sort(descending=True).values[int(_ACTIVE * len(top))])
    none_active, some_active = torch.full((terms,), -1e6), torch.full((terms,), -threshold)

    def screened(screen: Screen, bias: Tensor, count: int) -> None:
        screened_maximum(maxima, flat, groups[:count], weight, bias, screen, 1.0, parts[count])

    def narrow_terms(screen: Screen) -> Narrow:
        return screen.narrow(weight.unsqueeze(1))

    screens = {
        name: screen
        for name, screen in SCREENS.items()
        if is_exact(screen, width) and _is_fast(screen, flat, some)
    }
    calls: dict[tuple[str, str, int], Callable[[], object]] = {}
    few, many = _PARTS
    for count in _PARTS:
        calls["float32", "bare", count] = partial(plain, count)
        for name, screen in screens.items():
            calls[name, "bare", count] = partial(screened, screen, none_active, count)
    for name, screen in screens.items():
        calls[name, "active", many] = partial(screened, screen, some_active, many)
    calls |= {(name, "terms", 0): partial(narrow_terms, screen) for name, screen in screens.items()}
    seconds = _seconds(calls)

    def part_s(name: str) -> float:
        difference = seconds[name, "bare", many] - seconds[name, "bare", few]
        # Other work on the machine may make the smaller call the slower one: no difference to go by.
        return difference / (many - few) if difference > 0 else seconds[name, "bare", many] / many

    plain_s = part_s("float32")
    costs = {"float32": Cost(0.0, plain_s, 0.0, 1.0)}
    for name, screen in screens.items():
        sides = term_side(narrow_terms(screen)), token_side(screen.narrow(flat.view(rows, length, width)))
        buffer = torch.empty(terms * rows * length, dtype=screen.products)
        found = find_candidates(*sides, group, some_active, screen, 1.0, buffer)
        possible = 1.0 if found is None else len(found.rows) / (rows * terms)
        pairs_s = (seconds[name, "active", many] - seconds[name, "bare", many]) / many
        costs[name] = Cost(seconds[name, "terms", 0], part_s(name), max(pairs_s, 0.0), possible)
    return costs


def head_record() -> dict[str, Any]:
    """What a run writes down of the head's choice: the way that is asked for, and the times of this machine.

    Returns:
        `asked`, and `milliseconds`: kind of batch -> way -> milliseconds of a part with nothing active.
    """
    return {
        "asked": asked_way(),
        "milliseconds": {
            kind: {way: round(1e3 * (cost.terms_s + cost.part_s), 2) for way, cost in costs.items()}
            for kind, costs in sorted(_measured().items())
        },
    }


def measured_here() -> dict[str, Any]:
    """What this process goes by, in JSON types, for `take_measured`; without `kinds` if that is nothing."""
    machine = _machine()
    kinds = {kind: dict(ways) for kind, ways in _KNOWN.get(machine, {}).items()}
    return {"machine": machine, "kinds": kinds}


def take_measured(record: dict[str, Any]) -> None:
    """Go by what an earlier process measured, if it ran on this machine; its batches take the same way then.

    Args:
        record: What `measured_here` returned.
    """
    if record["machine"] == _machine():
        _measured().update(_costs_of(record["kinds"]))
    else:
        logger.info("the SPLADE head is measured anew: %s is not %s", _machine(), record["machine"])


def cache_file() -> Path:
    """The file that keeps what was measured."""
    return cache_folder() / "splade_head.json"


def _is_fast(screen: Screen, tokens: Tensor, terms: Tensor) -> bool:
    """Whether a small product is faster than in float32: an emulated one can take a hundred times as long."""
    terms = terms[:256]
    narrow = [screen.narrow(each.unsqueeze(1)).values for each in (terms, tokens)]
    full = terms.new_empty(len(terms), len(tokens))
    out = torch.empty(full.shape, dtype=screen.products)
    seconds = _seconds(
        {
            True: lambda: screen.multiply(narrow[0], narrow[1], out),
            False: lambda: torch.mm(terms, tokens.t(), out=full),
        }
    )
    return seconds[True] < seconds[False]


def _seconds(calls: dict[Name, Callable[[], object]]) -> dict[Name, float]:
    """The shortest time of each of some calls, which take turns so that other work delays all alike."""
    shortest = dict.fromkeys(calls, math.inf)
    for repeat in range(_REPEATS + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if repeat:  # the first call warms up
                shortest[name] = min(shortest[name], time.perf_counter() - start)
    return shortest


def _power_of_two(number: int) -> int:
    """The largest power of two that is not above a number of at least 1."""
    return 1 << (number.bit_length() - 1)


def _machine() -> str:
    """What the times depend on."""
    instructions = torch.backends.cpu.get_cpu_capability()
    return f"{processor_name()}, {instructions}, torch {torch.__version__}, {torch.get_num_threads()} threads"


def _measured() -> dict[str, dict[str, Cost]]:
    """What is known of this machine: kind of batch -> way -> cost."""
    machine = _machine()
    if machine not in _KNOWN:
        _KNOWN[machine] = _costs_of(_read().get(machine, {}))
    return _KNOWN[machine]


def _remember(kind: str, costs: dict[str, Cost]) -> None:
    """Keep what was measured, for this process and, if the folder can be written to, for later ones."""
    machine = _machine()
    _measured()[kind] = costs
    logger.debug("the SPLADE head took per part of %s: %s", kind, costs)
    machines = _read()
    machines[machine] = {name: dict(ways) for name, ways in _KNOWN[machine].items()}
    content = json.dumps({"format": FORMAT, "machines": machines}, indent=1).encode()
    try:
        cache_file().parent.mkdir(parents=True, exist_ok=True)
        write_file(cache_file(), content)
    except OSError as error:
        logger.warning("%s cannot be written (%s): each process measures the head anew", cache_file(), error)


def _read() -> dict[str, Any]:
    """The machines of the cached file; none if it is missing, damaged or of another format."""
    try:
        content = json.loads(cache_file().read_text(encoding="utf-8"))
        machines = content["machines"] if content["format"] == FORMAT else {}
        return {name: kinds for name, kinds in machines.items() if _costs_of(kinds)}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        logger.warning("%s cannot be read (%r) and is measured and written anew", cache_file(), error)
        return {}


def _costs_of(kinds: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, Cost]]:
    """Costs from their form in JSON.

    Raises:
        ValueError, TypeError, KeyError or AttributeError: If they are anything else.
    """
    costs = {
        kind: {way: Cost(*map(float, found)) for way, found in ways.items()} for kind, ways in kinds.items()
    }
    for ways in costs.values():
        if not (ways["float32"].part_s > 0 and ways.keys() <= set(WAYS)):
            raise ValueError(f"the ways must be among {WAYS}; received {ways}")
        if not all(math.isfinite(number) for cost in ways.values() for number in cost):
            raise ValueError(f"seconds must be finite; received {ways}")
    return costs

"""Which backends multiply tokens with terms on this processor: measured once for each width, then kept.

Whether a narrow product pays depends on the processor and the width: some processors have instructions for
bfloat16 or 8 bits that are no faster than those for float32, or only in large products. So the first batch
of a width times every backend on random numbers with few active pairs. From then on the screens that were
faster than the plain product are tried, the fastest first; where too many pairs are active, a screen refuses
a part by itself (`screening`). The measurement takes .1 to .3 seconds, once (`lexforge.storage.timings`).

All backends find the float32 maxima and winners, so processes that choose differently agree as two
processors agree, whose float32 sums end in other last digits: ranks need not choose together. The screens
among themselves give the same bits. `LEXFORGE_SPLADE_HEAD=float32` gives those of the plain product.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lexforge.kernels.splade_head.plain import plain_maximum
from lexforge.kernels.splade_head.screening import Groups, HeadBatch, screened_maximum
from lexforge.kernels.splade_head.screens import SCREENS, Screen, is_exact
from lexforge.storage.timings import timed, timings

VARIABLE = "LEXFORGE_SPLADE_HEAD"
BACKENDS = ("float32", *SCREENS)
_ROWS, _LENGTH, _TERMS = 8, 128, 4096  # of the batch that is timed
_LEAST_TOKENS, _LEAST_TERMS = 256, 1024  # of a batch that is screened; fewer do not repay the narrowing
_ACTIVE = 1 / 64  # share of its pairs that are active
_CALM_TURNS, _MOST_TURNS = 3, 30  # it ends after so many turns in which no backend got a tenth faster
_EMULATED = 10.0  # a backend that takes this many times as long in its first turn gets no other
_GAIN = 0.9  # a screen must be this fast, in units of the plain product, to be tried at all


def chosen_screens(states: Tensor, weight: Tensor, groups: Groups) -> list[Screen]:
    """Return the screens to try on a batch, the fastest first, before the plain product.

    Args:
        states: `[B * L, D]`.
        weight: `[V, D]`.
        groups: Rows and the places of their tokens, as `tiled` groups them.

    Returns:
        The screen that the environment variable `LEXFORGE_SPLADE_HEAD` names; without one those that are
        faster than the plain product. None at all for anything but float32 on a CPU, and for small batches
        unless a screen is named.

    Raises:
        ValueError: If the variable holds anything else than the name of a backend or "measured", or names
            one that this processor does not compute exactly.
    """
    requested = requested_backend()
    if states.device.type != "cpu" or not states.dtype == weight.dtype == torch.float32:
        return []
    if requested == "float32" or not groups or not weight.numel():
        return []
    width = weight.shape[1]
    if requested != "measured":
        if not is_exact(SCREENS[requested], width):
            raise ValueError(
                f"{VARIABLE} is {requested!r}, and this processor does not sum products of that format "
                "exactly: leave the variable unset, or set 'float32'"
            )
        return [SCREENS[requested]]
    if sum(places.numel() for _, places in groups) < _LEAST_TOKENS or len(weight) < _LEAST_TERMS:
        return []
    seconds = timed(f"head of width {width}", partial(time_backends, width))
    by_time = sorted(seconds, key=lambda name: seconds[name])
    faster = [SCREENS[name] for name in by_time if seconds[name] < _GAIN * seconds["float32"]]
    # Exactness is never read from a file: another processor of the same name may have written it.
    return [screen for screen in faster if is_exact(screen, width)]


def requested_backend() -> str:
    """Return what `LEXFORGE_SPLADE_HEAD` asks for: a backend, or "measured" where it is not set.

    Raises:
        ValueError: If it holds anything else.
    """
    requested = os.environ.get(VARIABLE) or "measured"
    if requested not in ("measured", *BACKENDS):
        allowed = ", ".join(map(repr, BACKENDS))
        raise ValueError(f"{VARIABLE} must be 'measured' or one of {allowed}; received {requested!r}")
    return requested


def time_backends(width: int) -> dict[str, float]:
    """Time every backend on a batch of random numbers with few active pairs.

    Args:
        width: D.

    Returns:
        Backend -> seconds of its fastest turn. The backends take turns, so that other work on the machine
        delays all alike, and on a busy machine they take more of them. A format that is not exact on this
        processor is left out.
    """
    generator = torch.Generator().manual_seed(0)
    flat = torch.randn(_ROWS * _LENGTH, width, generator=generator)
    weight = torch.randn(_TERMS, width, generator=generator) / width**0.5
    rows, places = torch.arange(_ROWS), torch.arange(len(flat)).view(_ROWS, _LENGTH)
    groups = list(zip(rows.split(2), places.split(2), strict=True))
    parts = [(slice(0, _TERMS), index) for index in range(len(groups))]
    batch = HeadBatch(flat, groups, weight, None, torch.full((_ROWS, _TERMS), -torch.inf), None)
    plain_maximum(batch, parts)
    bias = torch.full((_TERMS,), -float(batch.maximum.flatten().quantile(1 - _ACTIVE)))
    batch = batch._replace(bias=bias)
    calls: dict[str, Callable[[], object]] = {"float32": partial(plain_maximum, batch, parts)}
    for name, screen in SCREENS.items():
        if is_exact(screen, width):
            calls[name] = partial(screened_maximum, batch, screen, parts)
    seconds, calm = dict.fromkeys(calls, math.inf), 0
    for _ in range(_MOST_TURNS):
        before = dict(seconds)
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            seconds[name] = min(seconds[name], time.perf_counter() - start)
        # Without the instructions for a format its products may take a hundred times as long.
        calls = {name: call for name, call in calls.items() if seconds[name] < _EMULATED * seconds["float32"]}
        calm = 0 if any(seconds[name] < 0.9 * before[name] for name in seconds) else calm + 1
        if calm == _CALM_TURNS:
            break
    return seconds


def head_record() -> dict[str, Any]:
    """What `env.json` of a run says of the choice: what is asked for, and the timings of this machine."""
    return {"requested_backend": requested_backend(), "timings": timings()}

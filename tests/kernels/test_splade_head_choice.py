"""The way of the SPLADE head is measured once per machine, kept, and can be named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lexforge.kernels import splade_head, splade_head_choice
from lexforge.kernels.splade_head_choice import (
    VARIABLE,
    WAYS,
    Cost,
    asked_way,
    cache_file,
    chosen_screens,
    head_record,
    measure_ways,
    screens_by_cost,
)
from lexforge.kernels.splade_head_screens import SCREENS, is_exact

PLAIN = Cost(0.0, 8.0, 0.0, 1.0)
SCREENED = {"float32": PLAIN, "bfloat16": Cost(1.0, 2.0, 2.0, 0.125)}


@pytest.fixture(autouse=True)
def new_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine of which nothing is known, and every batch is worth a measurement."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(splade_head_choice, "_LEAST_WORK", 0)
    forget(monkeypatch)


@pytest.fixture
def measurements(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """What was measured; the times are those of `SCREENED`."""
    asked: list[tuple[int, ...]] = []
    monkeypatch.setattr(
        splade_head_choice, "measure_ways", lambda *kind: asked.append(kind) or dict(SCREENED)
    )
    return asked


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if this were a new process."""
    monkeypatch.setattr(splade_head_choice, "_KNOWN", {})


def choose(rows: int = 3, length: int = 9, width: int = 16, terms: int = 40) -> dict[str, float]:
    """The names of the screens for a batch of one group, and the shares up to which they are tried."""
    groups = [(torch.arange(rows), torch.arange(rows * length).view(rows, length))]
    screens = chosen_screens(torch.ones(rows * length, width), torch.ones(terms, width), groups)
    return {screen.name: share for screen, share in screens}


def test_the_lines_of_the_ways_cross_where_a_screen_hands_over() -> None:
    """Worked by hand, one part: 8-bit 2 + 4 a, bfloat16 3 + 2 a, float32 8, with a in units of 1/16."""
    costs = SCREENED | {"int8": Cost(0.5, 1.5, 4.0, 0.25)}
    chosen = [(screen.name, share) for screen, share in screens_by_cost(costs, 1.0)]
    # 2 + 4 a = 3 + 2 a at a = 1/2, where 0.25 / 2 of the pairs are possible; 3 + 2 a = 8 at a = 5/2
    assert chosen == [("int8", 0.125), ("bfloat16", 0.3125)]


def test_many_parts_share_the_narrowing_of_a_tile() -> None:
    """A short batch does not repay what is done once for a tile: 10 + 2 against 8, then 10 / 4 + 2."""
    costs = {"float32": PLAIN, "bfloat16": Cost(10.0, 2.0, 0.0, 0.1)}
    assert screens_by_cost(costs, 1.0) == []
    assert screens_by_cost(costs, 4.0) == [(SCREENS["bfloat16"], 0.5)]  # it grows no faster: the cap


def test_a_screen_that_saves_next_to_nothing_is_not_taken() -> None:
    """A gain of 2 % is noise, and the plain product has no density at which it is slow."""
    assert screens_by_cost({"float32": PLAIN, "bfloat16": Cost(0.0, 7.84, 0.1, 0.1)}, 1.0) == []


def test_a_kind_of_batch_is_measured_once_per_machine(
    measurements: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches of like size share a measurement, and a later process reads it from the user's cache."""
    first = choose(rows=3, length=9)
    assert first == {"bfloat16": pytest.approx(0.125 * (8 - (2 + 16 / 27)) / 2)}  # 27 / 16 parts of a tile
    choose(rows=2, length=15)
    assert measurements == [(16, 40, 2, 8)]
    forget(monkeypatch)
    assert choose(rows=3, length=9) == first
    assert len(measurements) == 1
    choose(rows=3, length=9, terms=41)
    monkeypatch.setattr(splade_head_choice, "processor_name", lambda: "another processor")
    choose(rows=3, length=9)
    assert measurements[1:] == [(16, 41, 2, 8), (16, 40, 2, 8)]
    assert len(json.loads(cache_file().read_text())["machines"]) == 2


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b'{"format": 1}',
        b'{"format": 0, "machines": {}}',
        b'{"format": 1, "machines": {"MACHINE": {"16 x 40, 2 x 8": {"bfloat16": [0, 1, 1, 1]}}}}',
        b'{"format": 1, "machines": {"MACHINE": {"16 x 40, 2 x 8": {"float32": [0, 1]}}}}',
        b'{"format": 1, "machines": {"MACHINE": {"16 x 40, 2 x 8": {"float32": [0, NaN, 1, 1]}}}}',
        b'{"format": 1, "machines": {"MACHINE": {"16 x 40, 2 x 8": {"float32": [0, 0, 1, 1]}}}}',
        b'{"format": 1, "machines": {"MACHINE": {"a": {"float32": [0, 1, 1, 1], "fp4": [0, 1, 1, 1]}}}}',
    ],
)
def test_a_damaged_cache_is_measured_and_written_anew(
    content: bytes, measurements: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk or another version may leave anything there; training must not fail of it."""
    cache_file().parent.mkdir(parents=True)
    cache_file().write_bytes(content.replace(b"MACHINE", splade_head_choice._machine().encode()))
    first = choose()
    forget(monkeypatch)
    assert choose() == first != {}
    assert len(measurements) == 1


def test_without_a_cache_each_process_measures(
    measurements: list[tuple[int, ...]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A home that cannot be written to costs time and a line in the log, no run."""
    (tmp_path / "file").write_text("a file where the folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    first = choose()
    assert "splade_head.json cannot be written" in caplog.text
    forget(monkeypatch)
    assert choose() == first
    assert len(measurements) == 2


def test_small_batches_and_other_dtypes_are_not_measured(
    measurements: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query of ten words takes less than the measurement; the screens are for float32 on processors."""
    groups = [(torch.arange(2), torch.arange(4).view(2, 2))]
    for dtype, device in ((torch.float64, "cpu"), (torch.bfloat16, "cpu"), (torch.float32, "meta")):
        states = torch.ones(4, 16, dtype=dtype, device=device)
        assert chosen_screens(states, states, groups) == []
    assert chosen_screens(torch.ones(4, 16), torch.ones(4, 16), []) == []
    monkeypatch.setattr(splade_head_choice, "_LEAST_WORK", 2**28)
    assert choose() == {}
    assert measurements == []


def test_a_way_that_is_named_is_taken_without_a_measurement(
    measurements: list[tuple[int, ...]], ask_for: Callable[[str], None]
) -> None:
    """Whoever compares two machines wants the same way on both."""
    for way in WAYS:
        ask_for(way)
        assert list(choose()) == [way] * (way != "float32")
    assert measurements == []


def test_a_wrong_name_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable with a slip must not be taken for "measured"."""
    monkeypatch.setenv(VARIABLE, "fp32")
    message = (
        "LEXFORGE_SPLADE_HEAD must be 'measured' or one of 'float32', 'bfloat16', 'int8'; received 'fp32'"
    )
    with pytest.raises(ValueError, match=message):
        splade_head(torch.ones(1, 2, 4), torch.ones(3, 4), None, torch.ones(1, 2))
    monkeypatch.setenv(VARIABLE, "")
    assert asked_way() == "measured"


def test_products_that_saturate_are_never_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without VNNI pairs of 8-bit products are added in 16 bits: a bound from them would be wrong."""

    def saturating(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> None:
        # One side is made unsigned by adding 128, as oneDNN does it with AVX2 (vpmaddubsw), and that is
        # taken off the sum.
        products = (left.int() + 128).unsqueeze(2) * right.int().unsqueeze(0)  # [n, D, m]
        pairs = products.unflatten(1, (-1, 2)).sum(2).clamp(-(2**15), 2**15 - 1)
        out.copy_(pairs.sum(1) - 128 * right.int().sum(0))

    is_exact.cache_clear()
    monkeypatch.setattr(torch, "_int_mm", saturating)
    try:
        assert not is_exact(SCREENS["int8"], 16)
        # Not even where another processor of this name has put them into the cache.
        costs = SCREENED | {"int8": Cost(0.0, 0.1, 0.1, 0.1)}
        monkeypatch.setattr(splade_head_choice, "measure_ways", lambda *_: costs)
        assert list(choose()) == ["bfloat16"]
        monkeypatch.setenv(VARIABLE, "int8")
        with pytest.raises(ValueError, match="LEXFORGE_SPLADE_HEAD is 'int8', and this processor does not"):
            choose()
    finally:
        is_exact.cache_clear()


def test_the_measurement_times_every_way_that_is_exact_and_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small one in earnest: times above 0, and a share of possible pairs above the 1/16 that are active."""
    monkeypatch.setattr(splade_head_choice, "_is_fast", lambda *_: True)
    state = torch.random.get_rng_state()
    costs = measure_ways(32, 1500, 2, 16)
    assert set(costs) == {"float32", *(name for name, screen in SCREENS.items() if is_exact(screen, 32))}
    for name, cost in costs.items():
        assert cost.part_s > 0
        assert name == "float32" or (cost.terms_s > 0 and 1 / 16 <= cost.possible < 0.3)
    assert torch.equal(
        torch.random.get_rng_state(), state
    )  # a run draws the same numbers with and without it


def test_a_product_slower_than_float32_is_not_timed_further(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor that emulates a format takes seconds for a whole tile."""
    slow = SCREENS["bfloat16"].multiply

    def emulated(self: object, terms: torch.Tensor, tokens: torch.Tensor, out: torch.Tensor) -> None:
        for _ in range(200):
            slow(terms, tokens, out)

    monkeypatch.setattr(type(SCREENS["bfloat16"]), "multiply", emulated)
    assert "bfloat16" not in measure_ways(32, 1024, 2, 16)


def test_the_record_of_a_run_names_the_ways_and_their_times(
    measurements: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs that differ in speed, or in their last digits, can be told apart by it."""
    assert head_record() == {"asked": "measured", "milliseconds": {}}
    choose()
    kind = {"16 x 40, 2 x 8": {"float32": 8000.0, "bfloat16": 3000.0}}
    assert head_record() == {"asked": "measured", "milliseconds": kind}
    monkeypatch.setenv(VARIABLE, "float32")
    assert head_record()["asked"] == "float32"

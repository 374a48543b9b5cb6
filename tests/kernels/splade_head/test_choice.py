"""The backend of the SPLADE head is measured once per machine and width, kept, and can be named."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from warm_processes import WarmProcesses

from lexforge.kernels import splade_head
from lexforge.kernels.splade_head import choice
from lexforge.kernels.splade_head.choice import BACKENDS, VARIABLE, chosen_screens
from lexforge.kernels.splade_head.screens import SCREENS, is_exact
from lexforge.storage import timings as known
from lexforge.storage.timings import cache_file, timings

WIDTH = 16
HEAD = f"head of width {WIDTH}"


@pytest.fixture(autouse=True)
def new_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A user of whom nothing is known."""
    before = dict(timings())
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    forget()
    yield
    forget()
    timings().update(before)


@pytest.fixture
def another_machine() -> Iterator[None]:
    """The same processor with another number of threads, which changes the times."""
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    forget()
    yield
    torch.set_num_threads(threads + 1)
    forget()
    torch.set_num_threads(threads)


def forget() -> None:
    """As if this were a new process, which asks the cached file for each time."""
    timings().clear()


def choose(rows: int = 4, length: int = 128, width: int = WIDTH, terms: int = 1024) -> list[str]:
    """The names of the screens for a batch of one group."""
    groups = [(torch.arange(rows), torch.arange(rows * length).view(rows, length))]
    screens = chosen_screens(torch.ones(rows * length, width), torch.ones(terms, width), groups)
    return [screen.name for screen in screens]


@pytest.mark.parametrize(
    ("seconds", "screens"),
    [
        ({"float32": 1.0, "bfloat16": 0.5, "int8": 0.6}, ["bfloat16", "int8"]),
        ({"float32": 1.0, "bfloat16": 0.6, "int8": 0.5}, ["int8", "bfloat16"]),
        ({"float32": 1.0, "bfloat16": 0.95, "int8": 0.5}, ["int8"]),  # a gain of 5 % is noise
        ({"float32": 1.0, "bfloat16": 1.5}, []),
    ],
)
def test_the_screens_that_were_faster_are_tried_the_fastest_first(
    seconds: dict[str, float], screens: list[str]
) -> None:
    """The measurement decides for every batch of the width, whatever its rows and terms are."""
    timings()[HEAD] = seconds
    exact = [name for name in screens if is_exact(SCREENS[name], WIDTH)]
    assert choose() == choose(rows=40, length=9, terms=9000) == exact
    assert set(timings()) == {HEAD}


def test_a_width_is_measured_once_and_a_later_process_reads_it(warm: WarmProcesses) -> None:
    """Without the cache every process would spend its first second on it, and might choose differently."""
    choose()
    measured = timings()[HEAD]
    choose()
    assert timings() == {HEAD: measured}
    code = "from lexforge.storage import timings; print(timings.state())"
    threads = f"import torch; torch.set_num_threads({torch.get_num_threads()}); "
    later = warm.completed("-c", threads + code, bare=True)
    assert later.stdout.strip() == str(known.state()), later.stderr


def test_each_machine_and_width_has_its_own_measurement(another_machine: None) -> None:
    """Several machines may share a home, and the number of threads decides what is fast."""
    choose()
    torch.set_num_threads(torch.get_num_threads() - 1)
    assert timings() == {}
    choose()
    choose(width=32)
    machines = json.loads(cache_file().read_text())["machines"]
    assert [list(widths) for widths in machines.values()] == [[HEAD], [HEAD, "head of width 32"]]


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe", b"[]", b'{"format": 3}', b'{"format": 2, "machines": {}}']
)
def test_a_damaged_cache_is_measured_and_written_anew(content: bytes) -> None:
    """A full disk or another version may leave anything there; training must not fail of it."""
    cache_file().write_bytes(content)
    choose()
    assert set(*json.loads(cache_file().read_text())["machines"].values()) == {HEAD}


def test_without_a_cache_each_process_measures(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A home that cannot be written to costs time and a line in the log, no run."""
    (tmp_path / "file").write_text("a file where the folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    choose()
    assert "timings cannot be kept" in caplog.text
    assert set(timings()) == {HEAD}


def test_small_batches_and_other_dtypes_are_not_measured() -> None:
    """A query of ten words takes less than the measurement; the screens are for float32 on processors."""
    groups = [(torch.arange(4), torch.arange(512).view(4, 128))]
    for dtype, device in ((torch.float64, "cpu"), (torch.bfloat16, "cpu"), (torch.float32, "meta")):
        tensor = torch.ones(512, WIDTH, dtype=dtype, device=device)
        assert chosen_screens(tensor, tensor.repeat(8, 1), groups) == []
    assert choose(rows=1) == choose(terms=1023) == choose(length=0) == []
    assert timings() == {}


def test_a_backend_that_is_named_is_taken_without_a_measurement(ask_for: Callable[[str], None]) -> None:
    """Whoever compares two machines wants the same backend on both, also for small batches."""
    for backend in BACKENDS:
        ask_for(backend)
        assert choose(rows=2, length=3, terms=5) == [backend] * (backend != "float32")
    assert timings() == {}


def test_a_wrong_name_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable with a slip must not be taken for "measured"."""
    monkeypatch.setenv(VARIABLE, "fp32")
    message = (
        "LEXFORGE_SPLADE_HEAD must be 'measured' or one of 'float32', 'bfloat16', 'int8'; received 'fp32'"
    )
    with pytest.raises(ValueError, match=message):
        splade_head(torch.ones(1, 2, 4), torch.ones(3, 4), None, torch.ones(1, 2))
    monkeypatch.setenv(VARIABLE, "")
    assert choice.requested_backend() == "measured"


def test_products_that_saturate_are_never_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without VNNI pairs of 8-bit products are added in 16 bits: a bound from them would be wrong."""

    def saturating(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> None:
        # One factor is made unsigned by adding 128, as oneDNN does it with AVX2 (vpmaddubsw), and that is
        # taken off the sum.
        products = (left.int() + 128).unsqueeze(2) * right.int().unsqueeze(0)  # [n, D, m]
        pairs = products.unflatten(1, (-1, 2)).sum(2).clamp(-(2**15), 2**15 - 1)
        out.copy_(pairs.sum(1) - 128 * right.int().sum(0))

    is_exact.cache_clear()
    monkeypatch.setattr(torch, "_int_mm", saturating)
    try:
        assert not is_exact(SCREENS["int8"], WIDTH)
        # Not even where another processor of this name has put it into the cache.
        timings()[HEAD] = {"float32": 1.0, "int8": 0.1}
        assert choose() == []
        monkeypatch.setenv(VARIABLE, "int8")
        with pytest.raises(ValueError, match="LEXFORGE_SPLADE_HEAD is 'int8', and this processor does not"):
            choose()
    finally:
        is_exact.cache_clear()


def test_the_measurement_times_every_backend_that_is_exact() -> None:
    """In earnest; and a run draws the same random numbers with and without it."""
    state = torch.random.get_rng_state()
    seconds = choice.time_backends(WIDTH)
    assert set(seconds) == {"float32", *(name for name, one in SCREENS.items() if is_exact(one, WIDTH))}
    assert all(0 < each < 60 for each in seconds.values())
    assert torch.equal(torch.random.get_rng_state(), state)


def test_the_turns_go_on_while_a_backend_gets_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the first turns of the fastest backend may be the slow ones."""
    backends = len(choice.time_backends(WIDTH))
    took = iter(
        0.5 if place == backends - 1 and turn >= 3 else 1.0 for turn in range(99) for place in range(backends)
    )
    now = [0.0]
    ends = cycle([False, True])

    def clock() -> float:
        now[0] += next(took) if next(ends) else 0.0
        return now[0]

    monkeypatch.setattr(choice, "time", SimpleNamespace(perf_counter=clock))
    assert list(choice.time_backends(WIDTH).values()) == [1.0] * (backends - 1) + [0.5]
    assert len(list(took)) == 92 * backends  # three calm turns, a faster one, and three calm ones again


@pytest.mark.slow
def test_a_product_that_is_emulated_is_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor that emulates a format takes seconds for a whole tile."""
    bfloat16 = type(SCREENS["bfloat16"])
    product, calls = bfloat16.multiply, []

    def emulated(self: object, terms: torch.Tensor, tokens: torch.Tensor, out: torch.Tensor) -> None:
        calls.append(len(terms))
        for _ in range(100):
            product(self, terms, tokens, out)

    is_exact(SCREENS["bfloat16"], WIDTH)
    monkeypatch.setattr(bfloat16, "multiply", emulated)
    seconds = choice.time_backends(WIDTH)
    assert seconds["bfloat16"] > 10 * seconds["float32"]
    assert len(calls) == 4  # one turn over the groups of two rows


def test_a_later_process_goes_by_the_state_of_an_earlier_one() -> None:
    """A resumed run must round as the run that it continues, whatever a new measurement would say."""
    assert known.state() == {}
    timings()["head of width 384"] = {"float32": 0.008, "bfloat16": 0.002}
    state = json.loads(json.dumps(known.state()))
    forget()
    known.load_state(state)
    assert known.state() == state
    assert choice.head_record() == {"requested_backend": "measured", "timings": state["timings"]}
    forget()
    known.load_state(state | {"machine": "another processor"})
    assert known.state() == {}


def test_processes_that_time_at_once_go_by_the_first() -> None:
    """A later process reads what the first has stored, and would end with other digits than the second."""

    def measure_late() -> dict[str, float]:
        forget()  # another process, which is done sooner
        known.timed("other", lambda: {"here": 3.0})
        known.timed("product", lambda: {"here": 1.0})
        forget()
        return {"here": 2.0}

    assert known.timed("product", measure_late) == {"here": 1.0}
    forget()
    assert known.timed("other", dict) == {"here": 3.0}

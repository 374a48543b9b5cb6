"""Random bytes, broken files and hostile values to every reader: read, or refused by its own error."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

HERE = Path(__file__).parent
_spec = importlib.util.spec_from_file_location("fuzz_readers", HERE / "readers.py")
assert _spec is not None
assert _spec.loader is not None
readers = importlib.util.module_from_spec(_spec)
sys.modules["fuzz_readers"] = readers
_spec.loader.exec_module(readers)

EXAMPLES = 300
HOSTILE = [
    *(bytes([byte]) for byte in b'\xff\x00\r\n\t "{}'),
    *b'[] null true NaN -Infinity 1e999 1_0 \xd9\xa3 "\\ud800" \\udfff \xef\xbb\xbf \xe2\x80\xa8'.split(b" "),
    *(b"9" * 400, b"9" * 5000, b"[" * 990 + b"]" * 990, b"[" * 200_000, b'{"a":' * 50_000),
]
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@st.composite
def broken(draw: Any, seed: bytes) -> bytes:
    """Valid content after one to four wounds."""
    data = seed
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        stop = min(len(data), start + draw(st.sampled_from([0, 0, 1, 1, 2, 8, 100])))
        wound = draw(st.sampled_from(HOSTILE) | st.binary(max_size=8) | st.just(data[start : start + 40]))
        data = data[:start] + wound + data[stop:]
    return data


@st.composite
def odd_records(draw: Any, seed: bytes) -> bytes:
    """JSON lines in which values are of another type, missing, or extra; of other files, random bytes."""
    lines = []
    for line in seed.split(b"\n"):
        try:
            record = json.loads(line)
        except ValueError:
            lines.append(line)
            continue
        if isinstance(record, dict):
            for key in draw(st.lists(st.sampled_from(sorted(record)), min_size=1, max_size=2)):
                record[key] = draw(json_values)
            if draw(st.booleans()):
                record.pop(draw(st.sampled_from(sorted(record))))
        lines.append(json.dumps(record).encode())
    return b"\n".join(lines) if lines != seed.split(b"\n") else draw(st.binary(max_size=200))


@pytest.mark.parametrize("name", readers.READERS)
def test_a_reader_reads_or_raises_its_own_error(name: str, tmp_path: Path) -> None:
    """A traceback out of a parser tells a user with a million lines nothing."""
    reader = readers.READERS[name]
    counts = {True: 0, False: 0}
    content = st.binary(max_size=300) | broken(reader.seed) | odd_records(reader.seed)

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(data=content, packing=st.sampled_from([0, 0, 0, 1, 2, 3]))
    def fuzz(data: bytes, packing: int) -> None:
        counts[reader.feed(data, packing, tmp_path)] += 1

    fuzz()
    assert sum(counts.values()) >= EXAMPLES
    assert counts[False] > 0


@pytest.mark.parametrize("name", readers.READERS)
def test_the_seed_is_valid_and_each_hostile_value_is_tried_everywhere(name: str, tmp_path: Path) -> None:
    """Each value at each place where a value begins: what random search would meet only by luck.

    What is nested too deeply is meant for JSON. The parser of Markdown takes seconds for each, and meets such
    files in tests/data/formats/test_texts.py.
    """
    reader = readers.READERS[name]
    values = [value for value in HOSTILE if name != "texts" or len(value) <= 5000]
    assert reader.feed(reader.seed, 0, tmp_path)
    for place in [match.start() for match in re.finditer(rb"[\s:,{\[\"]|\b|$", reader.seed)]:
        for value in values:
            reader.feed(reader.seed[:place] + value + reader.seed[place:], 0, tmp_path)
            end = re.compile(rb"[\s,}\]]|$").search(reader.seed, place + 1)
            assert end is not None
            reader.feed(reader.seed[:place] + value + reader.seed[end.start() :], 0, tmp_path)


def test_the_harness_sees_a_wrong_error(tmp_path: Path) -> None:
    """A fuzzer that accepts any exception finds nothing."""

    def fails(error: Exception) -> Any:
        def read(folder: Path) -> None:
            raise error

        return read

    for error in (KeyError("x"), UnicodeError(f"{tmp_path}"), readers.DataError("no file named")):
        reader = readers.Reader(("x",), fails(error), readers.DataError, b"")
        with pytest.raises((KeyError, UnicodeError, AssertionError)):
            reader.feed(b"", 0, tmp_path)
    half = readers.Reader(("x",), lambda folder: ["\ud800"], readers.DataError, b"")
    with pytest.raises(UnicodeEncodeError):
        half.feed(b"", 0, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", readers.READERS)
def test_atheris_finds_nothing(name: str, tmp_path: Path) -> None:
    """Guided by coverage it comes where random bytes do not; ten seconds a reader."""
    pytest.importorskip("atheris")
    command = [sys.executable, str(HERE / "readers.py"), name, "-max_total_time=10", "-max_len=2000"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=250)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    runs = re.search(r"Done (\d+) runs", done.stderr)
    assert runs is not None
    assert int(runs[1]) > 500, done.stderr[-2000:]
    print(f"{name}: {runs[1]} inputs")

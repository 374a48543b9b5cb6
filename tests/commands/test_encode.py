"""Encoding a corpus from the command line: alone, by a launcher's ranks, and through twenty kills."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from beir_folders import write_lines

from lexforge.commands import encode
from lexforge.corpus import EncodedCorpus, encoding

WORDS = "sort list search index file read write tree graph node hash key value error string number".split()


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def environment() -> dict[str, str]:
    """One thread a process, with one rank as with two: the threads decide the last bits of a sum."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def write_corpus(folder: Path, documents: int) -> Path:
    chance = random.Random(0)
    texts = [" ".join(chance.choices(WORDS, k=chance.randint(0, 40))) for _ in range(documents)]
    rows = [{"_id": f"d{number}", "text": text} for number, text in enumerate(texts)]
    return write_lines(folder / "corpus.jsonl", rows).parent


def command(model: Path, data: Path, output: Path, block_rows: int) -> list[str]:
    return [
        *("-m", "lexforge", "encode", "--model", str(model), "--data", str(data), "--output", str(output)),
        *("--block-rows", str(block_rows), "--batch-size", "4", "--max-seq-length", "32"),
    ]


def test_a_corpus_is_encoded_once(corpus_folder, tiny_checkpoint, tmp_path, capsys) -> None:
    """The second call finds nothing to do, and says so."""
    cfg = encode.Config(str(tiny_checkpoint), str(corpus_folder), tmp_path / "out", block_rows=3)
    encode.main(cfg)
    assert "rank 0 of 1: encoded 3 blocks of 7 documents" in capsys.readouterr().out
    before = contents(tmp_path / "out")
    assert len(before) == 4
    encode.main(cfg)
    assert "encoded 0 blocks" in capsys.readouterr().out
    assert contents(tmp_path / "out") == before


def test_a_plan_tells_time_and_size_and_writes_nothing(
    corpus_folder, tiny_checkpoint, tmp_path, capsys
) -> None:
    """The size is that of the blocks, up to their headers."""
    cfg = encode.Config(str(tiny_checkpoint), str(corpus_folder), tmp_path / "out", plan=True)
    encode.main(cfg)
    printed = capsys.readouterr().out
    assert not (tmp_path / "out").exists()
    assert "7 documents, of which 7 were encoded for this plan" in printed
    assert "documents per second per process" in printed
    told = re.search(r"([\d.]+) kB for the vectors; .* are free at", printed)
    assert told is not None
    encode.main(replace(cfg, plan=False))
    size = (tmp_path / "out" / "block-000000.safetensors").stat().st_size
    assert float(told[1]) * 1000 == pytest.approx(size, rel=0.1)


def test_the_precision_reaches_the_encoder(corpus_folder, tiny_checkpoint, tmp_path, monkeypatch) -> None:
    """An option that nothing reads would be believed."""
    monkeypatch.setattr(encoding, "multiplies_bfloat16", lambda: True)
    stored = {}
    for precision in ("fp32", "bf16"):
        folder = tmp_path / precision
        encode.main(encode.Config(str(tiny_checkpoint), str(corpus_folder), folder, precision=precision))
        assert EncodedCorpus(folder).manifest.precision == precision
        stored[precision] = EncodedCorpus(folder).merged()[0].toarray()
    difference = np.abs(stored["fp32"] - stored["bf16"]).max()
    assert 0 < difference < 0.05 * stored["fp32"].max()


def test_ranks_come_from_the_launcher(corpus_folder, tiny_checkpoint, tmp_path, monkeypatch, capsys) -> None:
    """torchrun and accelerate name a process by RANK and WORLD_SIZE."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    encode.main(encode.Config(str(tiny_checkpoint), str(corpus_folder), tmp_path / "out", block_rows=3))
    assert "rank 1 of 2: encoded 1 blocks" in capsys.readouterr().out
    assert sorted(contents(tmp_path / "out")) == ["block-000001.safetensors", "manifest.json"]


@pytest.mark.slow
def test_two_launched_ranks_write_the_bytes_of_one(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """As torchrun and `accelerate launch` start them: every block is the same, and so is the index."""
    data = write_corpus(tmp_path / "data", 150)
    one = command(tiny_checkpoint, data, tmp_path / "one", 8)
    subprocess.run([sys.executable, *one], check=True, env=environment(), timeout=250)
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    two = command(tiny_checkpoint, data, tmp_path / "two", 8)
    subprocess.run([*launch, *two], check=True, env=environment(), timeout=250)
    assert contents(tmp_path / "two") == contents(tmp_path / "one")


DRIVER = """
import os, random, signal, sys, time
from pathlib import Path
import tyro
from lexforge.commands import encode
cfg = tyro.cli(encode.Config, args=sys.argv[1:])
count = lambda: len(list(cfg.output.glob("block-*s")))
chance = random.Random(1)
for kill in range(20):
    before, child = count(), os.fork()
    if child == 0:
        encode.main(cfg)
        os._exit(0)
    while count() == before and not os.waitpid(child, os.WNOHANG)[0]:
        time.sleep(0.001)  # until it has written a block of its own
    time.sleep(chance.random() * 0.05)
    os.kill(child, signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    print(count())
"""


@pytest.mark.slow
def test_twenty_kills_leave_the_bytes_of_an_undisturbed_run(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """SIGKILL at random moments, each after at least one more block, and the command once more."""
    data = write_corpus(tmp_path / "data", 1200)
    options = {"check": True, "env": environment(), "timeout": 280}
    whole = command(tiny_checkpoint, data, tmp_path / "whole", 4)
    subprocess.run([sys.executable, *whole], **options)
    again = command(tiny_checkpoint, data, tmp_path / "killed", 4)
    driver = [sys.executable, "-c", DRIVER, *again[3:]]
    killed = subprocess.run(driver, **options, stdout=subprocess.PIPE, text=True)
    counts = [int(line) for line in killed.stdout.splitlines() if line.isdigit()]
    assert len(counts) == 20
    assert len(set(counts)) == 20
    assert counts == sorted(counts)
    assert counts[-1] < 300
    subprocess.run([sys.executable, *again], **options)
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"data": "no-such-data"}, FileNotFoundError, "no-such-data"),
        ({"model": "./no-such-model"}, FileNotFoundError, "no-such-model"),
        ({"block_rows": 0}, ValueError, "block_rows 0"),
        ({"max_seq_length": 1000}, ValueError, "max_seq_length of 3 to .*; received 1000"),
    ],
)
def test_bad_input_is_refused(change, error, message, corpus_folder, tiny_checkpoint, tmp_path) -> None:
    """Each mistake is named, and leaves no folder behind."""
    fields = {"model": str(tiny_checkpoint), "data": str(corpus_folder), "output": tmp_path / "out"}
    with pytest.raises(error, match=message):
        encode.main(encode.Config(**{**fields, **change}))
    assert not (tmp_path / "out").exists()

"""The benchmark of systems: its commands, the newest run of each seed, and the correction of p-values."""

from __future__ import annotations

import gzip
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

FOLDER = Path(__file__).resolve().parents[2] / "scripts" / "bench"


@pytest.fixture(scope="module")
def bench() -> Iterator[Any]:
    sys.path.insert(0, str(FOLDER))
    try:
        yield importlib.import_module("bench_presets")
    finally:
        sys.path.remove(str(FOLDER))


def test_further_flags_take_the_place_of_those_that_are_there(bench: Any) -> None:
    """A flag that stands twice would be refused, or the first one would win."""
    line = ["python", "recipe.py", "--steps", "200", "--seed", "1"]
    assert bench.with_flags(line, ("--steps", "600", "--negatives", "mined")) == [
        *("python", "recipe.py", "--seed", "1"),
        *("--steps", "600", "--negatives", "mined"),
    ]


def test_a_dense_encoder_is_trained_by_its_own_recipe(bench: Any, tmp_path: Path) -> None:
    """It has no stop words, no preset and no terms, and else what all systems have."""
    job = bench.Job("dense", "scifact", 2, tmp_path, flags=("--learning-rate", "2e-5"))
    line = bench.command(job, Path("data"), Path("model"))
    assert line[1] == "recipes/infonce_retrieval.py"
    assert not {"--language", "--preset"} & set(line)
    assert " --seed 2 " in " ".join(line)
    assert line[-2:] == ["--learning-rate", "2e-5"]
    assert bench.sparsity({"nDCG@10": 0.5}) == {"query_terms": "", "document_terms": "", "flops": ""}


def test_a_correction_is_that_of_holm(bench: Any) -> None:
    """By hand: 3 x .01, 2 x .02 and the largest as it is, but never below a smaller one's; at most 1."""
    assert bench.holm([0.02, 0.01, 0.03]) == pytest.approx([0.04, 0.03, 0.04])
    assert bench.holm([0.9, 0.6]) == [1.0, 1.0]
    assert bench.holm([0.04]) == [0.04]


def test_the_table_compares_queries_by_article(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores of seeds are averaged by query, the last run of a seed counts, and p is that of the articles."""
    data = tmp_path / "newwiki"
    (data / "qrels").mkdir(parents=True)
    documents = [{"_id": f"d{i}", "title": f"article {i // 2}", "text": "words"} for i in range(6)]
    queries = [{"_id": f"q{i}", "text": "words"} for i in range(6)]
    for name, rows in (("corpus", documents), ("queries", queries)):
        (data / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    judged = "".join(f"q{i}\td{i}\t1\n" for i in range(6))
    for split in ("train", "test"):
        (data / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + judged)
    scores = {
        ("plain", 1): [0.1, 0.1, 0.2, 0.2, 0.3, 0.3],
        ("plain", 2): [0.3, 0.3, 0.2, 0.2, 0.3, 0.3],
        ("lexforge", 1): [0.5, 0.5, 0.4, 0.4, 0.4, 0.4],
    }
    lines, rows = [], ["system,flags,model,set,split,seed,nDCG@10,R@100,query_terms,document_terms,flops,"]
    rows[0] += "steps,cpu_seconds"
    for (system, seed), values in [(("lexforge", 1), [0.0] * 6), *scores.items()]:
        run = {
            "system": system,
            "flags": "",
            "model": "tiny",
            "set": "newwiki",
            "split": "test",
            "seed": seed,
        }
        lines.append(json.dumps(run | {"nDCG@10": values, "R@100": values}) + "\n")
        rows.append(f"{system},,tiny,newwiki,test,{seed},{sum(values) / 6},.9,20,100,1.5,200,60")
    (tmp_path / "presets.csv").write_text("\n".join(rows) + "\n")
    with gzip.open(tmp_path / "scores.jsonl.gz", "wt", encoding="utf-8") as stream:
        stream.writelines(lines)
    monkeypatch.setattr(bench, "RESULTS", tmp_path)
    monkeypatch.setattr(bench, "SCORES", tmp_path / "scores.jsonl.gz")
    ours = next(line for line in bench.table(tmp_path, "test", "plain").splitlines() if "`lexforge`" in line)
    gains = stats.ttest_1samp([0.3, 0.2, 0.1], 0.0)  # of three articles
    low, high = gains.confidence_interval()
    assert f"| 1 | 0.4333 | +0.2000 ({low:+.4f} to {high:+.4f}) | {gains.pvalue:.2g} |" in ours
    assert ours.endswith("| 20 | 100 | 1.50 | 200 | 60 |")

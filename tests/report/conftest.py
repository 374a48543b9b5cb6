"""A run directory without a run: every file as a run of the SPLADE recipe leaves it, with made-up numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

QUERIES = [f"q{number}" for number in range(12)]


def write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


def log_line(step: int) -> dict[str, Any]:
    """A line of the log in the second phase from step 20 on, with documents that come down to 64 terms."""
    ranking, flops = 3.0 / step, 0.002 * step
    return {
        "step": step,
        "epoch": step / 40,
        "time": 1_700_000_000 + 2 * step,
        "loss": ranking + flops,
        "loss/infonce": ranking,
        "loss/flops_document": flops,
        "loss/triplet": 0.0,
        "share/infonce": ranking / (ranking + flops),
        "share/flops_document": flops / (ranking + flops),
        "share/triplet": 0.0,
        "terms/query": 20.0,
        "terms/document": 200.0 - 3 * step,
        "terms/document_wanted": 64,
        "phase": 1.0 if step < 20 else 2.0,
        "learning_rate": 1e-3 * (1 - step / 40),
        "grad_norm": 1.0,
    }


def statistics(texts: int) -> dict[str, Any]:
    return {
        "texts": texts,
        "mean_active": 12.5,
        "min_active": 0,
        "max_active": 30,
        "empty": 1,
        "histogram": {"edges": [0, 10, 20, 31], "counts": [1, texts - 3, 2]},
        "dead_terms": 123,
        "frequent": [["heart", 0.5, 1.25, False], ["the", 0.4, 0.1, True]],
        "strong": [["heart", 0.7, False], ["</script>", 0.3, False]],
    }


def search(query: str) -> dict[str, Any]:
    return {
        "id": query,
        "text": f"what is <b>{query}</b> & why",
        "relevant": 2,
        "own": [["heart", 1.5], ["rate", 0.5]],
        "expansion": [["pulse", 0.75]],
        "expansion_terms": 3,
        "lost": ["what"],
        "hits": [
            {"id": "d1", "score": 3.5, "grade": 1, "terms": [["heart", 2.5], ["pulse", 1.0]]},
            {"id": "d2", "score": 0.5, "grade": 0, "terms": [["rate", 0.5]]},
        ],
        "bm25": [["d2", 0]],
        "initial": [["d1", 1], ["d2", 0]],
    }


def make_run(folder: Path, lift: float = 0.3) -> Path:
    """Fill a run directory; the trained model is `lift` above the one before training on most queries."""
    folder.mkdir(parents=True)
    config = {
        "data": "somewhere",
        "model": "lexical",
        "preset": "v26",
        "loss": {"temperature": 0.05, "lift": lift},
    }
    write_json(folder / "config.json", config)
    environment = {"command": ["python", "recipe.py", "--data", "a b"], "versions": {"torch": "2.13.0"}}
    write_json(folder / "env.json", environment)
    begin = {"begin": True, "max_steps": 40, "step": 0, "epoch": 0, "time": 1_700_000_000}
    lines = [begin, *(log_line(step) for step in range(1, 41))]
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    initial = np.linspace(0.1, 0.6, len(QUERIES))
    trained = initial + lift
    trained[0] = 0.0  # one query is lost
    values = {"bm25": np.full(len(QUERIES), 0.4), "initial": initial, "trained": trained}
    metrics: dict[str, Any] = {}
    for system, numbers in values.items():
        per_query = {"nDCG@10": dict(zip(QUERIES, numbers.tolist(), strict=True))}
        write_json(folder / f"{system}.scores.json", per_query)
        metrics[system] = {"nDCG@10": float(numbers.mean())}
    metrics["trained"] |= {
        "query_active_dims": 20.0,
        "document_active_dims": 80.0,
        "flops": 1.5,
        "index_bytes": 123_456,
    }
    metrics["timing"] = {"search_p50_ms": 0.25, "stage_seconds": {"read the data": 2.5, "train": 80.0}}
    write_json(folder / "metrics.json", metrics)
    write_json(
        folder / "terms.json",
        {"vocabulary_size": 500, "documents": statistics(40), "queries": statistics(12)},
    )
    sample = {"active": 12.5, "empty": 0.0, "everywhere": 0.0, "own_terms": 6.0, "own_recall": 1.0}
    sample |= {"texts": 12, "expansion": 0.5, "rare_weight": 1.0}
    numbers = {
        "documents": sample | {"stop_words_of_top": 0.05},
        "queries": sample | {"stop_words_of_top": 0.1},
    }
    write_json(folder / "diagnosis.json", {"vocabulary_size": 500, "stop_words": 30, **numbers})
    texts = {"d1": "The heart beats.", "d2": "A rate <i>of</i> interest </script><script>alert(1)</script>"}
    write_json(folder / "explorer.json", {"queries": [search(query) for query in QUERIES], "texts": texts})
    (folder / "model").mkdir()
    return folder


SCRIPT = "<img src=x onerror=\"document.title='script of the run'\">"
NAMES = {"nDCG@10", *QUERIES, "d1", "d2", "read the data", "share/infonce", "loss/infonce"}


def with_script(content: Any) -> Any:
    """JSON in which every text, and every key that a run chooses, ends in script and a NUL."""
    if isinstance(content, str):
        return f"{content} {SCRIPT}\0"
    if isinstance(content, list):
        return [with_script(value) for value in content]
    if isinstance(content, dict):
        return {
            with_script(key) if key in NAMES else key: with_script(value) for key, value in content.items()
        }
    return content


@pytest.fixture(scope="session")
def hostile_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose folder, names and texts hold script, as somebody else's run directory may."""
    run = make_run(tmp_path_factory.mktemp("foreign") / f"run {SCRIPT} $$x$$")
    for path in run.glob("*.json"):
        write_json(path, with_script(json.loads(path.read_text(encoding="utf-8"))))
    metrics = json.loads((run / "metrics.json").read_text(encoding="utf-8"))
    write_json(run / "metrics.json", metrics | {SCRIPT: metrics["trained"]})
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    (run / "log.jsonl").write_text("".join(json.dumps(with_script(line)) + "\n" for line in lines))
    return run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "first")


@pytest.fixture
def short(run: Path) -> None:
    """Shorten the page of the run: its log has the loss alone, and no query has a score."""
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    kept = {"begin", "max_steps", "step", "epoch", "time", "loss"}
    lines = [{name: value for name, value in line.items() if name in kept} for line in lines]
    (run / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for file in run.glob("*.scores.json"):
        file.unlink()


@pytest.fixture(scope="session")
def new_run() -> Callable[..., Path]:
    """`make_run`, for tests that need another run."""
    return make_run

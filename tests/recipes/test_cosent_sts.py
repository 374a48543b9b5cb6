"""The STS recipe, as a user runs it."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from warm_processes import WarmProcesses

from lexforge.report import run_verdict

ROOT = Path(__file__).resolve().parents[2]
Run = Callable[..., subprocess.CompletedProcess[str]]
QUICK = (
    "--batch-size",
    8,
    "--max-seq-length",
    16,
    "--save-steps",
    10,
    "--learning-rate",
    2e-3,
    "--steps",
    20,
)
TOPICS = {"sea": "ship harbour wave sailor tide", "field": "wheat plough farmer barn harvest"}


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """Sentences on two topics; a pair of one topic is scored high, and shares no word."""
    lines = []
    words = {topic: text.split() for topic, text in TOPICS.items()}
    for i in range(60):
        first, second = ("sea", "field")[i % 2], ("sea", "field")[(i // 2) % 2]
        row = {
            "sentence1": " ".join(words[first][(i + j) % 3] for j in range(2)),
            "sentence2": words[second][3 + i // 4 % 2],
            "score": 5.0 if first == second else 0.0,
            "split": "test" if i % 3 == 0 else "train",
        }
        lines.append(json.dumps(row) + "\n")
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(lines), encoding="utf-8")
    return path


@pytest.fixture
def run(warm: WarmProcesses) -> Run:
    """Runs the recipe with the given arguments."""
    return partial(warm.completed, ROOT / "recipes/cosent_sts.py")


def measures(folder: Path) -> dict[str, dict[str, float]]:
    """The numbers of a run without the seconds that it took."""
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics.pop("timing")["stage_seconds"]["train"] > 0
    return metrics


def test_the_recipe_learns_and_resumes_to_the_same_numbers(run: Run, pairs: Path, tmp_path: Path) -> None:
    """A user's whole way: train, read the numbers, load the model; a run resumed at half gives the same."""
    whole = run("--data", pairs, *QUICK, "--output-dir", tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr
    metrics = measures(tmp_path / "whole")
    assert metrics["initial"]["spearman_cosine"] < 0.5  # no word in common
    assert metrics["trained"]["spearman_cosine"] > 0.8
    assert "spearman_cosine" in whole.stdout
    assert f"\n{run_verdict(tmp_path / 'whole')}\n" in whole.stdout
    last = tmp_path / "whole" / "checkpoint-20"
    last.rename(tmp_path / "gone")
    (tmp_path / "whole" / "metrics.json").unlink()
    resumed = run("--data", pairs, *QUICK, "--output-dir", tmp_path / "whole", "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert measures(tmp_path / "whole") == metrics


@pytest.mark.slow
def test_a_run_killed_while_it_built_the_encoder_goes_on_with_the_same_data(
    run: Run, pairs: Path, tmp_path: Path
) -> None:
    """Then the folder holds the records alone; with other data the run is refused."""
    whole = run("--data", pairs, *QUICK, "--output-dir", tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr
    metrics = measures(tmp_path / "whole")
    for path in (tmp_path / "whole").iterdir():
        if path.name not in ("config.json", "env.json"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    resumed = run("--data", pairs, *QUICK, "--output-dir", tmp_path / "whole", "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert measures(tmp_path / "whole") == metrics

    lines = pairs.read_text(encoding="utf-8").splitlines()
    pairs.write_text("\n".join(lines[:-1]) + "\n", encoding="utf-8")
    resumed = run("--data", pairs, *QUICK, "--output-dir", tmp_path / "whole", "--resume")
    assert "the data are not those that the run began with" in resumed.stderr


def test_bad_input_is_refused_before_a_run_directory_exists(run: Run, pairs: Path, tmp_path: Path) -> None:
    """A test split that is missing, or whose scores correlate with nothing, would show after hours only."""
    lines = pairs.read_text(encoding="utf-8").splitlines()
    equal = tmp_path / "equal.jsonl"
    equal.write_text(
        "".join(line.replace("5.0", "0.0") + "\n" if '"test"' in line else f"{line}\n" for line in lines)
    )
    result = run("--data", equal, "--output-dir", tmp_path / "out")
    assert result.returncode != 0
    assert "all scores of the split 'test' are equal" in result.stderr
    equal.write_text("".join(line.replace("5.0", "0.0") + "\n" for line in lines if '"train"' in line))
    equal.write_text(equal.read_text() + "".join(f"{line}\n" for line in lines if '"train"' not in line))
    result = run("--data", equal, "--output-dir", tmp_path / "out")
    assert "all scores of the split 'train' are equal" in result.stderr
    result = run("--data", pairs, "--batch-size", 1, "--output-dir", tmp_path / "out")
    assert "--batch-size must be above 1; received 1" in result.stderr
    text = pairs.read_text(encoding="utf-8").replace('"test"', '"train"')
    pairs.write_text(text, encoding="utf-8")
    result = run("--data", pairs, "--output-dir", tmp_path / "out")
    assert result.returncode != 0
    assert "has no split 'test'; its splits are ['train']" in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_measure_of_another_similarity_is_refused_before_training(
    run: Run, pairs: Path, tmp_path: Path
) -> None:
    """A model that compares by cosine has no such measure, which would show at the first evaluation."""
    best = ("--hold-out", 0.2, "--eval-steps", 10, "--best-measure", "spearman_dot")
    for plan in ((), ("--plan",)):
        result = run("--data", pairs, *QUICK, *best, "--output-dir", tmp_path / "out", *plan)
        assert result.returncode != 0
        measures = "['spearman_cosine', 'pearson_cosine']"
        assert f"best_measure must be one of {measures}; received 'spearman_dot'" in result.stderr
        shutil.rmtree(tmp_path / "out", ignore_errors=True)


def test_a_plan_tells_what_a_run_would_take(run: Run, pairs: Path, tmp_path: Path) -> None:
    """And leaves nothing behind."""
    out = tmp_path / "out"
    result = run("--data", pairs, *QUICK, "--output-dir", out, "--plan")
    assert result.returncode == 0, result.stderr
    assert "\nrows                  40, of which a step takes 8\n" in result.stdout
    assert f"are free at {tmp_path}" in result.stdout
    assert not out.exists()

"""The files of a run, read for its page: also of a run that goes on, or that crashed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lexforge.evaluation import SYSTEM_NAMES, RunScores, read_scores
from lexforge.report.model_numbers import DIAGNOSIS_FILE
from lexforge.report.record import ADAPTATION_FILE, EXPLORER_FILE, METRICS_FILE, TERMS_FILE, scores_file
from lexforge.runs import read_log
from lexforge.runs.run_directory import read_json

# The measure that the page begins with is the first of these that a run has.
HEADLINES = ("nDCG@10", "spearman_cosine", "spearman_dot", "label_map")
# The parts of metrics.json that are no systems.
OTHERS = ("timing", "best_checkpoint", "training_queries", "wanted_terms")


@dataclass(frozen=True)
class RunFiles:
    """What a run has left so far.

    Args:
        name: What the page calls the run.
        folder: The run directory.
        config: The settings; empty without `config.json`.
        environment: Versions, machine and command; empty without `env.json`.
        metrics: `{system: {measure: value}}`, of all systems that have been measured.
        timing: Seconds of the stages and speeds; empty before the run has ended. Of a run that was resumed
            (`resumed`) the seconds are those of its last process.
        best_checkpoint: Step and value of the best checkpoint; empty if none was chosen.
        wanted_terms: Wanted mean numbers of active terms, "document" and "query"; None for a free one.
        scores: The values of each query, by system.
        log: The lines of the log that hold values of the Trainer.
        begins: The lines that say where training began or was resumed.
        terms: The use of the vocabulary, as `term_statistics` describes it; None before it is written.
        searches: The sampled searches, as `sample_searches` describes them; None before they are written.
        diagnosis: What `record_symptoms` wrote of the trained model; None before it is written.
        missing: Name of a file that the run has not written -> what the page cannot show without it.
    """

    name: str
    folder: Path
    config: dict[str, Any]
    environment: dict[str, Any]
    metrics: dict[str, dict[str, float]]
    timing: dict[str, Any]
    best_checkpoint: dict[str, float]
    wanted_terms: dict[str, float | None]
    scores: dict[str, RunScores]
    log: list[dict[str, Any]]
    begins: list[dict[str, Any]]
    terms: dict[str, Any] | None
    searches: dict[str, Any] | None
    diagnosis: dict[str, Any] | None
    missing: dict[str, str]

    @property
    def has_ended(self) -> bool:
        """Whether the run has written its results."""
        return METRICS_FILE not in self.missing

    @property
    def headline(self) -> str | None:
        """The measure that the page begins with."""
        names = [name for values in self.metrics.values() for name in values]
        return next((name for name in (*HEADLINES, *names) if name in names), None)

    @property
    def dev_key(self) -> str | None:
        """The key in the log of the measure on dev by which the best checkpoint is chosen, or a headline."""
        best = (self.config.get("evaluation") or {}).get("best_measure")
        keys = [f"eval_dev_{name}" for name in ((best,) if best else HEADLINES)]
        return next((key for key in keys if any(key in line for line in self.log)), None)


def headline_of(runs: Sequence[RunFiles]) -> str | None:
    """The measure that the page of these runs begins with: that of the first run that has measured any."""
    return next((run.headline for run in runs if run.headline), None)


def read_run_files(folder: str | Path, name: str | None = None) -> RunFiles:
    """Read what a run has left.

    Args:
        folder: The run directory.
        name: What the page calls the run; None takes the name of the folder.

    Returns:
        The files, with what is missing.

    Raises:
        FileNotFoundError: If the folder holds neither the settings nor the log of a run.
        ValueError: If a file is damaged.
    """
    folder = Path(folder)
    lines = read_log(folder)
    if not (folder / "config.json").is_file() and not lines:
        raise FileNotFoundError(
            f"{folder} is no run directory: it has neither config.json nor log.jsonl of a run"
        )
    config, environment = read_json(folder / "config.json"), read_json(folder / "env.json")
    written = read_json(folder / METRICS_FILE)
    terms, searches = read_json(folder / TERMS_FILE), read_json(folder / EXPLORER_FILE)
    scores = {
        system: read_scores(folder / scores_file(system))
        for system in SYSTEM_NAMES
        if (folder / scores_file(system)).is_file()
    }
    measured = {system: values.mean for system, values in scores.items()}
    if written is not None:
        measured |= {system: values for system, values in written.items() if system not in OTHERS}
    retrieves = bool(scores) or any("nDCG@10" in values for values in measured.values())
    sparse = any("terms/query" in line for line in lines)
    expected = {
        "config.json": ("the settings", config is not None),
        "env.json": ("the versions, the machine and the command", environment is not None),
        METRICS_FILE: (
            "the results and the time of each stage",
            written is not None or (folder / ADAPTATION_FILE).is_file(),
        ),
        "log.jsonl": ("what happened during training", bool(lines)),
        TERMS_FILE: ("how the model uses its vocabulary", terms is not None or not sparse),
        EXPLORER_FILE: ("searches of the test queries", searches is not None or not retrieves),
    }
    return RunFiles(
        name=name or folder.resolve().name,
        folder=folder,
        config=config or {},
        environment=environment or {},
        metrics={system: measured[system] for system in (*SYSTEM_NAMES, *measured) if system in measured},
        timing=(written or {}).get("timing", {}),
        best_checkpoint=(written or {}).get("best_checkpoint", {}),
        wanted_terms=(written or {}).get("wanted_terms", {}),
        scores=scores,
        log=[line for line in lines if not line.get("begin")],
        begins=[line for line in lines if line.get("begin")],
        terms=terms,
        searches=searches,
        diagnosis=read_json(folder / DIAGNOSIS_FILE),
        missing={file: what for file, (what, there) in expected.items() if not there},
    )


def other_measurement(first: RunFiles, second: RunFiles) -> list[str]:
    """Say in what the measurements of two runs differ, as far as they recorded it: nothing if they are alike.

    A document that was not searched hides no other, and other judgements give other values to equal rankings.
    """
    one, other = (run.environment.get("data", {}) for run in (first, second))
    parts = [name for name in ("searched documents", "judged queries") if name in one and name in other]
    differences = [f"their {name}" for name in parts if one[name] != other[name]]
    if first.config.get("eval_documents") != second.config.get("eval_documents"):
        differences.append("their sample of the documents (--eval-documents)")
    return differences

"""The files of a run, read for its page: also of a run that goes on, or that crashed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lexforge.evaluation import SYSTEM_NAMES, read_scores
from lexforge.report.model_numbers import DIAGNOSIS_FILE
from lexforge.report.record import ADAPTATION_FILE, EXPLORER_FILE, METRICS_FILE, TERMS_FILE, scores_file
from lexforge.runs import read_log
from lexforge.runs.run_directory import read_json

# The measure that the page begins with is the first of these that a run has.
HEADLINES = ("nDCG@10", "spearman_cosine", "spearman_dot", "label_map")
# The parts of metrics.json that are no systems.
OTHERS = ("timing", "best_checkpoint", "training_queries", "wanted_terms")


class RunFiles:
    """What a run has left so far.

    Args:
        folder: The run directory.
        name: What the page calls the run; None takes the name of the folder.

    Attributes:
        config: The settings; empty without `config.json`.
        environment: Versions, machine and command; empty without `env.json`.
        log: The lines of the log that hold values of the Trainer.
        begins: The lines that say where training began or was resumed.
        scores: The values of each query, by system.
        metrics: `{system: {measure: value}}`, of all systems that have been measured.
        timing: Seconds of the stages and speeds; empty before the run has ended. Of a run that was resumed
            (`resumed`) the seconds are those of its last process.
        best_checkpoint: Step and value of the best checkpoint; empty if none was chosen.
        wanted_terms: Wanted mean numbers of active terms, "document" and "query"; None for a free one.
        terms: The use of the vocabulary, as `term_statistics` describes it; None before it is written.
        searches: The sampled searches, as `sample_searches` describes them; None before they are written.
        diagnosis: What `record_symptoms` wrote of the trained model; None before it is written.
        missing: Name of a file that the run has not written -> what the page cannot show without it.

    Raises:
        FileNotFoundError: If the folder holds neither the settings nor the log of a run.
        ValueError: If a file is damaged.
    """

    def __init__(self, folder: str | Path, name: str | None = None) -> None:
        self.folder = Path(folder)
        self.name = name or self.folder.resolve().name
        lines = read_log(self.folder)
        config, environment = self._json("config.json"), self._json("env.json")
        if config is None and not lines:
            raise FileNotFoundError(
                f"{folder} is no run directory: it has neither config.json nor log.jsonl of a run"
            )
        self.config, self.environment = config or {}, environment or {}
        self.log = [line for line in lines if not line.get("begin")]
        self.begins = [line for line in lines if line.get("begin")]
        self.scores = {
            system: read_scores(self.folder / scores_file(system))
            for system in SYSTEM_NAMES
            if (self.folder / scores_file(system)).is_file()
        }
        written = self._json(METRICS_FILE)
        results = written or {}
        measured = {system: values.mean for system, values in self.scores.items()}
        measured |= {system: values for system, values in results.items() if system not in OTHERS}
        self.metrics = {name: measured[name] for name in (*SYSTEM_NAMES, *measured) if name in measured}
        self.timing: dict[str, Any] = results.get("timing", {})
        self.best_checkpoint: dict[str, float] = results.get("best_checkpoint", {})
        self.wanted_terms: dict[str, float | None] = results.get("wanted_terms", {})
        self.terms, self.searches = self._json(TERMS_FILE), self._json(EXPLORER_FILE)
        self.diagnosis = self._json(DIAGNOSIS_FILE)
        retrieves = bool(self.scores) or any("nDCG@10" in values for values in measured.values())
        sparse = any("terms/query" in line for line in lines)
        expected = {
            "config.json": ("the settings", config is not None),
            "env.json": ("the versions, the machine and the command", environment is not None),
            METRICS_FILE: (
                "the results and the time of each stage",
                written is not None or (self.folder / ADAPTATION_FILE).is_file(),
            ),
            "log.jsonl": ("what happened during training", bool(lines)),
            TERMS_FILE: ("how the model uses its vocabulary", self.terms is not None or not sparse),
            EXPLORER_FILE: ("searches of the test queries", self.searches is not None or not retrieves),
        }
        self.missing = {file: what for file, (what, there) in expected.items() if not there}

    def _json(self, file: str) -> dict[str, Any] | None:
        return read_json(self.folder / file)

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

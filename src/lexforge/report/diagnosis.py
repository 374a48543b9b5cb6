"""The diagnosis of a run from its files: the symptoms it shows, and the setting that treats each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lexforge.report.diagnosis_of_log import oscillation, overfitting, scale
from lexforge.report.diagnosis_of_model import Symptom, model_findings
from lexforge.report.finding import Finding
from lexforge.report.model_numbers import FILE
from lexforge.runs.checkpoints import by_step
from lexforge.runs.log_file import read_log
from lexforge.runs.run_directory import read_json

SIMILARITY = Symptom(
    "whether the saved model is searched by another similarity than it was trained by (1) or not (0)",
    0.0,
    "below",
    percent=False,
)


def diagnose(run: str | Path) -> list[Finding]:
    """Look for the known symptoms of a training that goes wrong in the files of a run.

    Nothing is measured anew: the numbers of the model are in `diagnosis.json`, which a recipe writes at
    its end by `record_symptoms`, and the losses are in the log. A run that goes on or was interrupted is
    diagnosed as far as its files allow.

    Args:
        run: A run directory.

    Returns:
        One finding per symptom. A symptom that could not be measured has a finding too, which says why. A run
        of a dense model is diagnosed by its log alone.

    Raises:
        FileNotFoundError: If the folder holds neither the settings (config.json) nor the log of a run.
        ValueError: If a file of the run is not what a run writes.

    Source: docs/diagnosis.md, which defines and justifies each number.
    """
    folder = Path(run)
    log = read_losses(folder)
    if not log and not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder} is no run directory: it has neither config.json nor a log")
    config = read_json(folder / "config.json") or {}
    sample = read_json(folder / FILE)
    saved = folder / "model" / "config_sentence_transformers.json"
    searched_by = (read_json(saved) or {}).get("similarity_fn_name")
    metrics = read_json(folder / "metrics.json") or {}
    try:
        return findings_of(config, sample, log, searched_by, metrics.get("best_checkpoint"))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{folder} holds a file that no run of this version wrote: {error!r}") from error


def findings_of(
    config: Mapping[str, Any],
    sample: Mapping[str, Any] | None,
    log: Sequence[Mapping[str, Any]],
    searched_by: str | None = None,
    best_checkpoint: Mapping[str, float] | None = None,
) -> list[Finding]:
    """Turn what a run recorded into findings.

    Args:
        config: The settings of the run, as in config.json.
        sample: What `measure_symptoms` returned; None if the model was not measured.
        log: The lines of the Trainer's log, in their order.
        searched_by: The similarity that the saved model carries; None if there is no saved model.
        best_checkpoint: Step and value of the checkpoint that the run ended with; None if it ended with the
            last weights.

    Returns:
        The findings, as `diagnose` returns them.
    """
    loss = config.get("loss") or {}
    findings = []
    if "flops_weight" in loss:  # the loss of a sparse model
        share = (config.get("finish") or {}).get("start_share", 0.0)
        findings += model_findings({**loss, "start_share": share}, str(config.get("language") or ""), sample)
        findings += [scale(config, log), _similarity(loss["similarity"], searched_by)]
    return [*findings, oscillation(config, log), overfitting(config, log, best_checkpoint)]


def _similarity(trained_by: str, searched_by: str | None) -> Finding:
    """Whether the saved model is searched by the similarity that it was trained by."""
    return SIMILARITY.judge(
        "similarity",
        None if searched_by is None else float(searched_by != trained_by),
        "similarity_fn_name in model/config_sentence_transformers.json",
        f"set it to {trained_by!r}, by which the loss compared queries and documents (now {searched_by!r})",
        "the run has saved no model",
    )


def read_losses(folder: Path) -> list[dict[str, Any]]:
    """Read the log of a run; that of its newest checkpoint where it has no file of its own.

    Args:
        folder: The run directory.

    Returns:
        The lines in their order; none where there is no log.
    """
    lines = read_log(folder)
    if lines:
        return lines
    states = [read_json(checkpoint / "trainer_state.json") for checkpoint in by_step(folder)[-1:]]
    history: list[dict[str, Any]] = states[0]["log_history"] if states and states[0] else []
    return history

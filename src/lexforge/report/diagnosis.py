"""The diagnosis of a run from its files: which symptoms it shows, and what to change."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lexforge.report.run_files import RunFiles
from lexforge.report.symptoms import SYMPTOMS, Symptom, flag_of

LINES, EVALUATIONS = 8, 3  # fewer lines of the log, or evaluations on dev, show no trend
Measured = tuple[float | None, str]  # a number and a remark on it, or None and why there is none


@dataclass(frozen=True)
class Finding:
    """What a diagnosis found of a symptom.

    Args:
        symptom: What was looked for.
        number: What was measured; None where nothing could be.
        advice: What to change and in which direction, as one sentence; where nothing could be measured, the
            reason; empty if the number is healthy.
    """

    symptom: Symptom
    number: float | None
    advice: str

    @property
    def ok(self) -> bool | None:
        """Whether the number is that of a healthy run; None where nothing could be measured."""
        return None if self.number is None else self.symptom.is_healthy(self.number)

    @property
    def value(self) -> str:
        """The number with its unit, or "not measured"."""
        return "not measured" if self.number is None else self.symptom.number_text(self.number)

    @property
    def line(self) -> str:
        """The finding as one line of text."""
        if self.ok is None:
            return f"{self.symptom.text}: {self.value}, because {self.advice}"
        numbers = f"{self.symptom.text}: {self.value} (healthy: {self.symptom.limit_text})"
        return numbers if self.ok else f"{numbers}: {self.advice}"


def diagnose(run: str | Path | RunFiles) -> list[Finding]:
    """Look for the known symptoms of a training that goes wrong in the files of a run.

    Nothing is measured anew: the numbers of the model are in `diagnosis.json`, which a recipe writes at
    its end by `record_symptoms`, and the losses are in the log. A run that goes on or was interrupted is
    diagnosed as far as its files allow.

    Args:
        run: A run directory, or its files as the page has read them.

    Returns:
        One finding per symptom. A symptom that could not be measured has a finding too, which says why. A run
        of a dense model and one of `lexforge adapt` are diagnosed by their logs alone.

    Raises:
        FileNotFoundError: If the folder holds neither the settings (config.json) nor the log of a run.
        ValueError: If a file of the run is not what a run of this version writes.

    Source: docs/diagnosis.md, which defines and justifies each number.
    """
    files = run if isinstance(run, RunFiles) else RunFiles(run)
    try:
        return _findings(files)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{files.folder} holds a file that no run of this version wrote: {error!r}"
        ) from error


def findings_text(findings: Sequence[Finding]) -> str:
    """Format findings for the end of a run: the sick ones first, one line each, then the rest.

    Args:
        findings: The findings of a run, in any order.

    Returns:
        Lines of text. Findings that could not be measured for the same reason share a line, and so do the
        healthy ones, with their numbers.
    """
    lines = [f"! {finding.line}" for finding in findings if finding.ok is False]
    unknown: dict[str, list[str]] = {}  # reason -> names
    for finding in findings:
        if finding.ok is None:
            unknown.setdefault(finding.advice, []).append(finding.symptom.name)
    lines += [f"? not measured: {', '.join(names)}, because {reason}" for reason, names in unknown.items()]
    healthy = [f"{finding.symptom.name} {finding.value}" for finding in findings if finding.ok]
    if healthy:
        lines.append(f"healthy in {len(healthy)} of {len(findings)} respects: {', '.join(healthy)}")
    return "\n".join(lines)


def advice_of(symptom: Symptom, run: RunFiles) -> str:
    """The advice against a symptom, with the flags and the values of a run."""
    wanted = run.wanted_terms.get("document") is not None
    return symptom.advice_text(partial(flag_of, config=run.config), terms_are_wanted=wanted)


def _findings(run: RunFiles) -> list[Finding]:
    loss = run.config.get("loss") or {}
    symptoms = dict(SYMPTOMS)

    def change(name: str, **parts: Any) -> None:
        symptoms[name] = replace(symptoms[name], **parts)

    measured: dict[str, Measured] = {}
    if "flops_weight" in loss:  # the loss of a sparse model
        measured |= _of_the_model(run.diagnosis)
        if run.diagnosis is not None and run.diagnosis["documents"]["own_terms"]:
            # Queries that are as long as the documents may have as many terms.
            lengths = run.diagnosis["queries"]["own_terms"] / run.diagnosis["documents"]["own_terms"]
            change("query_density", limit=max(symptoms["query_density"].limit, 1.25 * lengths))
        measured["scale"] = _scale(run)
    measured["oscillation"] = _oscillation(run)
    if "scale" in run.config:  # of CoSENT, the inverse of a temperature
        change("oscillation", advice="lower {train.learning_rate}, or lower {scale}")
    elif loss.get("name") == "bce":  # binary cross-entropy has no temperature
        change("oscillation", advice="lower {train.learning_rate}, or lower {head_learning_rate}")
    if "documents" in run.config:  # of `lexforge adapt`: a preset gives its loss, and dev is not measured
        change("oscillation", advice="lower {train.learning_rate}")
    else:
        measured["overfitting"] = _overfitting(run)
    if run.dev_key is None:  # a loss moves more than a measure of ranking
        change("overfitting", text="rise of the loss on dev since its best evaluation", limit=0.1)
    findings = []
    for name, (number, remark) in measured.items():
        symptom = symptoms[name]
        if number is not None:
            remark = "" if symptom.is_healthy(number) else remark + advice_of(symptom, run)
        findings.append(Finding(symptom, number, remark))
    return findings


def _of_the_model(sample: Mapping[str, Any] | None) -> dict[str, Measured]:
    """What `record_symptoms` wrote, by symptom."""
    if sample is None:
        reason = "the run has no diagnosis.json yet, which it writes at its end"
        names = list(SYMPTOMS)[: list(SYMPTOMS).index("scale")]
        return dict.fromkeys(names, (None, reason))
    queries, documents = sample["queries"], sample["documents"]
    numbers = {
        "stop_words": documents["stop_words_of_top"],
        "rare_weight": documents["rare_weight"],
        "own_recall": documents["own_recall"],
        "expansion": documents["expansion"],
        "everywhere": documents["everywhere"],
        "empty": max(queries["empty"], documents["empty"]),
        "dense": max(queries["active"], documents["active"]) / sample["vocabulary_size"],
        "query_density": queries["active"] / documents["active"] if documents["active"] else None,
    }
    reason = "no text of the sample has such terms"
    measured: dict[str, Measured] = {
        name: (number, "" if number is not None else reason) for name, number in numbers.items()
    }
    if not sample["stop_words"]:
        measured["stop_words"] = None, "no entry of the vocabulary is a stop word of --language"
    return measured


def _scale(run: RunFiles) -> Measured:
    """The first InfoNCE of the log over the loss of guessing: far above 1, a model is sure and wrong.

    Source: Jang et al. 2026 (arXiv 2606.18811): a large head makes products of vectors large, and training
    fails.
    """
    first = next((float(line["loss/infonce"]) for line in run.log if "loss/infonce" in line), math.nan)
    guessing = _guessing(run.config)
    if not guessing:
        return None, "InfoNCE has the weight 0"
    if not math.isfinite(first):
        return None, "the log has no finite value of InfoNCE"
    return first / guessing, ""


def _oscillation(run: RunFiles) -> Measured:
    """The spread of the differences of the loss from line to line, in units of the loss of guessing."""
    lines = [line for line in run.log if "loss" in line]
    values = np.array([float(line["loss"]) for line in lines])  # [lines]
    broken = np.flatnonzero(~np.isfinite(values))
    if len(broken):
        return math.inf, f"the loss is no finite number at step {lines[broken[0]]['step']}: "
    if len(values) < LINES:
        return None, f"the log has {len(values)} lines of the loss, and fewer than {LINES} show no trend"
    unit = max(_guessing(run.config), float(np.abs(values[:3]).mean()))
    return float(np.diff(values)[1:].std()) / unit, ""  # the first step down is no oscillation


def _overfitting(run: RunFiles) -> Measured:
    """What the run lost on dev after its best evaluation, as a share of it."""
    key = run.dev_key or "eval_loss"
    values = np.array([float(line[key]) for line in run.log if key in line])  # [evaluations]
    if len(values) < EVALUATIONS:
        reason = f"the log has {len(values)} evaluations on dev, and {EVALUATIONS} are needed (--eval-steps)"
        return None, reason
    if not np.isfinite(values).all():
        return None, f"the log holds a value of {key} that is no finite number"
    if key == "eval_loss":  # a loss may be negative, and near 0 at its best
        lost, unit = values[-1] - values.min(), max(abs(values[0]), abs(values.min()))
    else:
        lost, unit = values.max() - run.best_checkpoint.get("value", values[-1]), abs(values.max())
    return float(lost / unit) if unit else 0.0, ""


def _guessing(config: Mapping[str, Any]) -> float:
    """What InfoNCE costs a model that scores all positives of a batch alike: its weight times ln B."""
    loss = config.get("loss") or {}
    phases = loss.get("phases") or []
    weight = phases[0]["infonce_weight"] if phases else loss.get("infonce_weight", 1.0)
    rows = (config.get("train") or {}).get("batch_size") or 2
    return float(weight) * math.log(max(2, rows))

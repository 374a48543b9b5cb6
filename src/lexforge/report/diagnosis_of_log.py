"""What the log of a training says about a run: its start, its jumps, and what it lost on dev."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lexforge.report.diagnosis_of_model import Symptom
from lexforge.report.finding import Finding

LINES, EVALUATIONS = 8, 3  # fewer lines of the log, or evaluations on dev, show no trend
SCALE = Symptom("InfoNCE at the start, where 1 is the loss of guessing", 2.0, "below", percent=False)
OSCILLATION = Symptom("jumps of the loss from line to line of the log", 0.15, "below")
OVERFITTING = Symptom("share of the best value on dev that was lost again", 0.05, "below")
# A loss moves more than a measure of ranking.
OVERFITTING_BY_LOSS = Symptom("rise of the loss on dev since its best evaluation", 0.1, "below")
Log = Sequence[Mapping[str, Any]]


def scale(config: Mapping[str, Any], log: Log) -> Finding:
    """Judge the first InfoNCE of the log: far above the loss of guessing, a model is sure and wrong.

    Args:
        config: The settings of the run, as in config.json.
        log: The lines of the Trainer's log.

    Returns:
        The finding "scale".

    Source: Jang et al. 2026 (arXiv 2606.18811): a large head makes products of vectors large, and training
    fails.
    """
    loss = config.get("loss") or {}
    temperature, knob = _temperature(loss)
    first = next((float(line["infonce"]) for line in log if "infonce" in line), math.nan)
    guessing = _guessing(config)
    advice = (
        f"raise {knob} (now {temperature:g}), or divide the weight and the bias of the decoder by the same "
        "factor before training, because products of vectors are too large for this temperature"
    )
    number = first / guessing if guessing and math.isfinite(first) else None
    return SCALE.judge("scale", number, knob, advice, "the log has no finite value of InfoNCE")


def oscillation(config: Mapping[str, Any], log: Log) -> Finding:
    """Judge the spread of the differences of the loss from line to line, in units of the loss of guessing.

    Args:
        config: The settings of the run.
        log: The lines of the Trainer's log.

    Returns:
        The finding "oscillation"; it is not ok if a loss is no finite number.
    """
    temperature, temperature_knob = _temperature(config.get("loss") or {})
    rate = (config.get("train") or {}).get("learning_rate")
    knob = "--learning-rate"
    advice = f"lower {knob}" + (f" (now {rate:g})" if rate else "")
    advice += f", or raise {temperature_knob} (now {temperature:g}) or --batch-size"
    lines = [line for line in log if "loss" in line]
    values = np.array([float(line["loss"]) for line in lines])  # [lines]
    broken = np.flatnonzero(~np.isfinite(values))
    if len(broken):
        step = lines[broken[0]].get("step", "?")
        advice = f"the loss is no finite number at step {step}: {advice}"
        return OSCILLATION.judge("oscillation", math.inf, knob, advice, "")
    number = None
    if len(values) >= LINES:
        unit = max(_guessing(config), float(np.abs(values[:3]).mean()))
        number = float(np.diff(values)[1:].std()) / unit  # the first step down is no oscillation
    reason = f"the log has {len(values)} lines of the loss, and fewer than {LINES} show no trend"
    return OSCILLATION.judge("oscillation", number, knob, advice, reason)


def overfitting(config: Mapping[str, Any], log: Log, best_checkpoint: Mapping[str, float] | None) -> Finding:
    """Judge what the run lost on dev after its best evaluation.

    Args:
        config: The settings of the run.
        log: The lines of the Trainer's log.
        best_checkpoint: Step and value of the checkpoint that the run ended with; None for the last weights.

    Returns:
        The finding "overfitting", of the measure by which the best checkpoint is chosen, of nDCG@10, or,
        where neither is in the log, of the loss on dev.
    """
    wanted = (config.get("evaluation") or {}).get("best_measure") or "nDCG@10"
    keys = [key for line in log for key in line if key.startswith("eval_") and key.endswith(wanted)]
    key = keys[0] if keys else "eval_loss"
    values = np.array([float(line[key]) for line in log if key in line])  # [evaluations]
    symptom = OVERFITTING if keys else OVERFITTING_BY_LOSS
    number = None
    if len(values) < EVALUATIONS:
        reason = f"the log has {len(values)} evaluations on dev, and {EVALUATIONS} are needed (--eval-steps)"
    elif not np.isfinite(values).all():
        reason = f"the log holds a value of {key} that is no finite number"
    else:
        reason = ""
        if keys:
            kept = values[-1] if best_checkpoint is None else best_checkpoint["value"]
            lost, unit = values.max() - kept, abs(values.max())
        else:  # a loss may be negative, and near 0 at its best
            lost, unit = values[-1] - values.min(), max(abs(values[0]), abs(values.min()))
        number = float(lost / unit) if unit else 0.0
    advice = (
        f"give --best-measure {wanted}, which keeps the best checkpoint, more rows or fewer --steps; a "
        "higher --loss.flops-weight leaves less to memorise"
    )
    return symptom.judge("overfitting", number, "--best-measure", advice, reason)


def _guessing(config: Mapping[str, Any]) -> float:
    """What InfoNCE costs a model that scores all positives of a batch alike: its weight times ln B."""
    loss = config.get("loss") or {}
    phases = loss.get("phases") or []
    weight = phases[0]["infonce_weight"] if phases else loss.get("infonce_weight", 1.0)
    rows = (config.get("train") or {}).get("batch_size") or 2
    return float(weight) * math.log(max(2, rows))


def _temperature(loss: Mapping[str, Any]) -> tuple[float, str]:
    """The temperature at the end of training, and the setting that holds it."""
    if loss.get("phases"):
        return float(loss["phases"][-1]["temperature"]), "the temperatures of --loss.phases"
    return float(loss.get("temperature") or 1.0), "--loss.temperature"

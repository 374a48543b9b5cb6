"""The diagnosis of a run from its files: the symptoms it shows, and the setting that treats each of them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from lexforge.runs.checkpoints import by_step
from lexforge.runs.finding import Finding
from lexforge.runs.log_file import read_log
from lexforge.training.symptoms import FILE

LINES, EVALUATIONS = 8, 3  # fewer lines of the log, or evaluations on dev, show no trend
# Each threshold stands between the values of healthy runs and those of runs with the wrong setting, which
# docs/diagnosis.md lists.
STOP_WORDS = 0.25
RARE_WEIGHT = 0.75
OWN_RECALL = 0.5
EXPANSION = 0.15
EVERYWHERE = 0.15
EMPTY = 0.01
DENSE = 0.25
QUERY_RATIO = 0.7
SCALE = 2.0
OSCILLATION = 0.15
OVERFITTING, OVERFITTING_LOSS = 0.05, 0.1


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
        FileNotFoundError: If the folder is no run directory: it has no config.json.
        ValueError: If a file of the run is not what a run writes.

    Source: docs/losses.md, section 10, and docs/diagnosis.md, which defines and justifies each number.
    """
    folder = Path(run)
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder} is no run directory, because it has no config.json")
    config = _read(folder / "config.json")
    sample = _read(folder / FILE) if (folder / FILE).is_file() else None
    saved = folder / "model" / "config_sentence_transformers.json"
    searched_by = _read(saved).get("similarity_fn_name") if saved.is_file() else None
    metrics = _read(folder / "metrics.json") if (folder / "metrics.json").is_file() else {}
    try:
        return findings_of(config, sample, read_losses(folder), searched_by, metrics.get("best_checkpoint"))
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
        findings += _of_model(loss, str(config.get("language", "")), sample)
        findings += [_scale(config, loss, log), _similarity(loss["similarity"], searched_by)]
    findings.append(_oscillation(config, loss, log))
    findings.append(_overfitting(config, log, best_checkpoint))
    return findings


def _of_model(loss: Mapping[str, Any], language: str, sample: Mapping[str, Any] | None) -> list[Finding]:
    """The symptoms that the vectors of a sample of texts show."""
    flops, query_flops = loss["flops_weight"], loss.get("query_flops_weight")
    lower_flops = f"lower --loss.flops-weight (now {flops:g})"
    raise_flops = f"raise --loss.flops-weight (now {flops:g})"
    if loss["idf_alpha"] is None:
        stop_knob = "--loss.idf-alpha and --loss.stopword-penalty"
        stop_advice = (
            "set --loss.idf-alpha 4, --loss.stopword-penalty 15 and --loss.flops-weight 0.01, because plain "
            "FLOPS does not know which terms are stop words and reads no penalty for them"
        )
        rare_knob = "--loss.flops-weight"
        rare_advice = f"{lower_flops}, because every term pays the same for its weight, rare ones included"
    else:
        stop_knob = "--loss.stopword-penalty and --loss.flops-weight"
        stop_advice = f"raise --loss.stopword-penalty (now {loss['stopword_penalty']:g}) and {raise_flops}"
        rare_knob = "--loss.idf-alpha"
        rare_advice = (
            f"raise --loss.idf-alpha (now {loss['idf_alpha']:g}), because a term pays exp(-alpha * idf), or "
            f"{lower_flops}"
        )
    if loss.get("positive_activation_weight", 0) > 2:
        stop_advice += (
            f"; or lower --loss.positive-activation-weight (now {loss['positive_activation_weight']:g}), "
            "which rewards the stop words of the positive too"
        )
    query_knob = "--loss.query-flops-weight"
    of_language = f" ({language})" if language else ""

    def finding(
        name: str,
        symptom: str,
        value: float | None,
        threshold: float,
        healthy: Literal["below", "above"],
        knob: str,
        advice: str,
        percent: bool = True,
    ) -> Finding:
        if sample is None:
            reason = f"the run has no {FILE} yet, which it writes at its end"
        else:
            reason = "no text of the sample has an active term"
        return _judged(name, symptom, value, threshold, healthy, knob, advice, percent, reason)

    queries: Mapping[str, Any] = {} if sample is None else sample["queries"]
    documents: Mapping[str, Any] = {} if sample is None else sample["documents"]
    empty = dense = ratio = None
    widest = QUERY_RATIO
    if sample is not None:
        empty = max(queries["empty"], documents["empty"])
        dense = max(queries["active"], documents["active"]) / sample["vocabulary_size"]
        ratio = queries["active"] / documents["active"] if documents["active"] else None
        if documents["own_terms"]:  # queries that are as long as the documents may have as many terms
            widest = max(widest, 1.25 * queries["own_terms"] / documents["own_terms"])
    no_stop_words = sample is not None and not sample["stop_words"]
    stop = finding(
        "stop_words",
        f"stop words{of_language} among the ten strongest terms of a document",
        None if no_stop_words else documents.get("stop_words_of_top"),
        STOP_WORDS,
        "below",
        stop_knob,
        stop_advice,
    )
    if no_stop_words:
        reason = "no entry of the vocabulary is a stop word of --language"
        stop = _judged(stop.name, stop.symptom, None, STOP_WORDS, "below", "", "", True, reason)
    return [
        stop,
        finding(
            "rare_weight",
            "weight of the rarer half of a document's own terms, in mean weights of its active terms",
            documents.get("rare_weight"),
            RARE_WEIGHT,
            "above",
            rare_knob,
            rare_advice,
            percent=False,
        ),
        finding(
            "own_recall",
            "own words of a document that are active",
            documents.get("own_recall"),
            OWN_RECALL,
            "above",
            "--loss.flops-weight",
            f"{lower_flops}, or raise --loss.self-reconstruction-weight (now "
            f"{loss['self_reconstruction_weight']:g})",
        ),
        finding(
            "expansion",
            "active terms of a document that are not in its text",
            documents.get("expansion"),
            EXPANSION,
            "above",
            "--loss.flops-weight",
            f"{lower_flops} or --loss.start-share (now {loss['start_share']:g}); "
            "--loss.positive-activation-weight (now "
            f"{loss['positive_activation_weight']:g}) helps terms that are active already",
        ),
        finding(
            "everywhere",
            "active terms of a document that nearly every document activates",
            documents.get("everywhere"),
            EVERYWHERE,
            "below",
            "--loss.flops-weight",
            f"{raise_flops}; where they are stop words, {stop_advice}; a pretrained encoder also gains from "
            "--loss.idf-bias 0.35",
        ),
        finding(
            "empty",
            "texts without an active term",
            empty,
            EMPTY,
            "below",
            "--loss.flops-weight",
            f"{lower_flops}, lengthen --loss.ramp-fraction (now {loss['ramp_fraction']:g}) and raise "
            f"--loss.minimum-activation-weight (now {loss['minimum_activation_weight']:g})",
        ),
        finding(
            "dense",
            "share of the vocabulary that a text activates",
            dense,
            DENSE,
            "below",
            "--loss.flops-weight",
            f"{raise_flops}, or give --document-terms",
        ),
        finding(
            "query_density",
            "active terms of a query, in those of a document",
            ratio,
            widest,
            "below",
            query_knob,
            f"raise {query_knob} (now {flops if query_flops is None else query_flops:g}) above "
            "--loss.flops-weight, or give --query-terms",
        ),
    ]


def _scale(config: Mapping[str, Any], loss: Mapping[str, Any], log: Sequence[Mapping[str, Any]]) -> Finding:
    """The first InfoNCE of the log, in units of what guessing costs: far above 1 the model is sure and wrong.

    Source: Jang et al. 2026 (arXiv 2606.18811): large heads make products of vectors large and training fail.
    """
    temperature, knob = _temperature(loss)
    values = [float(line["infonce"]) for line in log if "infonce" in line]
    guessing = _guessing(config, loss)
    return _judged(
        "scale",
        "InfoNCE at the start, where 1 is the loss of guessing",
        values[0] / guessing if values and guessing and math.isfinite(values[0]) else None,
        SCALE,
        "below",
        knob,
        f"raise {knob} (now {temperature:g}), or divide the weight and the bias of the decoder by the same "
        "factor before training, because products of vectors are too large for this temperature",
        False,
        "the log has no finite value of InfoNCE",
    )


def _guessing(config: Mapping[str, Any], loss: Mapping[str, Any]) -> float:
    """What InfoNCE costs a model that scores all positives of a batch alike: its weight times ln B."""
    phases = loss.get("phases") or []
    weight = phases[0]["infonce_weight"] if phases else loss.get("infonce_weight", 1.0)
    return float(weight) * math.log(max(2, (config.get("train") or {}).get("batch_size") or 2))


def _similarity(trained_by: str, searched_by: str | None) -> Finding:
    """Whether the saved model is searched by the similarity that it was trained by."""
    return _judged(
        "similarity",
        "the saved model is searched by another similarity than it was trained by",
        None if searched_by is None else float(searched_by != trained_by),
        0.0,
        "below",
        "similarity_fn_name in model/config_sentence_transformers.json",
        f"set it to {trained_by!r}, by which the loss compared queries and documents (now {searched_by!r})",
        False,
        "the run has saved no model",
    )


def _oscillation(
    config: Mapping[str, Any], loss: Mapping[str, Any], log: Sequence[Mapping[str, Any]]
) -> Finding:
    """The spread of the differences of the loss from line to line, in units of what guessing costs."""
    temperature, temperature_knob = _temperature(loss)
    train = config.get("train") or {}
    rate = train.get("learning_rate")
    name, symptom = "oscillation", "jumps of the loss from line to line of the log"
    lower = "lower --learning-rate" + (f" (now {rate:g})" if rate else "")
    advice = f"{lower}, or raise {temperature_knob} (now {temperature:g}) or --batch-size"
    knob = "--learning-rate"
    lines = [line for line in log if "loss" in line]
    values = np.array([float(line["loss"]) for line in lines])
    broken = np.flatnonzero(~np.isfinite(values))
    if len(broken):
        advice = f"the loss is no finite number at step {lines[broken[0]].get('step', '?')}: {advice}"
        return _judged(name, symptom, math.inf, OSCILLATION, "below", knob, advice, True, "")
    value = None
    if len(values) >= LINES:
        unit = max(_guessing(config, loss), float(np.abs(values[:3]).mean()))
        value = float(np.diff(values)[1:].std()) / unit  # the first step down is no oscillation
    reason = f"the log has {len(values)} lines of the loss, and fewer than {LINES} show no trend"
    return _judged(name, symptom, value, OSCILLATION, "below", knob, advice, True, reason)


def _overfitting(
    config: Mapping[str, Any],
    log: Sequence[Mapping[str, Any]],
    best_checkpoint: Mapping[str, float] | None,
) -> Finding:
    """What the run lost on dev after its best evaluation, as a share of the best value."""
    wanted = (config.get("evaluation") or {}).get("best_measure") or "nDCG@10"
    keys = [key for line in log for key in line if key.startswith("eval_") and key.endswith(wanted)]
    key = keys[0] if keys else "eval_loss"
    values = np.array([float(line[key]) for line in log if key in line])
    value, threshold = None, OVERFITTING
    reason = f"the log has {len(values)} evaluations on dev, and {EVALUATIONS} are needed: give --eval-steps"
    if len(values) >= EVALUATIONS and np.isfinite(values).all():
        if key == "eval_loss":  # lower is better, and it may be negative
            threshold = OVERFITTING_LOSS
            drop = values[-1] - values.min()
            unit = max(abs(values.min()), abs(values[0]))
        else:
            kept = values[-1] if best_checkpoint is None else best_checkpoint["value"]
            drop = values.max() - kept
            unit = abs(values.max())
        value = float(drop / unit) if unit else 0.0
    elif len(values) >= EVALUATIONS:
        reason = f"the log holds {key} that is no finite number"
    return _judged(
        "overfitting",
        "share of the best value on dev that was lost again",
        value,
        threshold,
        "below",
        "--best-measure",
        f"give --best-measure {wanted}, which keeps the best checkpoint, more rows or fewer --steps; a "
        "higher --loss.flops-weight or --weight-decay leaves less to memorise",
        True,
        reason,
    )


def _temperature(loss: Mapping[str, Any]) -> tuple[float, str]:
    """The temperature at the end of training, and the setting that holds it."""
    if loss.get("phases"):
        return float(loss["phases"][-1]["temperature"]), "the temperatures of --loss.phases"
    return float(loss.get("temperature", 1.0)), "--loss.temperature"


def _judged(
    name: str,
    symptom: str,
    number: float | None,
    threshold: float,
    healthy: Literal["below", "above"],
    knob: str,
    advice: str,
    percent: bool,
    reason: str,
) -> Finding:
    """Compare a number with its threshold; without a number the finding says the reason."""

    def text(one: float) -> str:
        return f"{100 * one:.3g} %" if percent else f"{one:.3g}"

    limit = f"at {'most' if healthy == 'below' else 'least'} {text(threshold)}"
    if number is None:
        return Finding(symptom, "not measured", limit, None, knob, reason, name)
    ok = number <= threshold if healthy == "below" else number >= threshold
    return Finding(symptom, text(number), limit, ok, knob, "" if ok else advice, name, number)


def read_losses(folder: Path) -> list[dict[str, Any]]:
    """The log of a run; that of its newest checkpoint where it has no file of its own."""
    lines = read_log(folder)
    if lines:
        return lines
    states = [checkpoint / "trainer_state.json" for checkpoint in by_step(folder)]
    states = [state for state in states if state.is_file()]
    history: list[dict[str, Any]] = _read(states[-1])["log_history"] if states else []
    return history


def _read(file: Path) -> dict[str, Any]:
    """The content of a JSON file of the run."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is not the JSON that a run writes: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{file} must hold a JSON object; received {type(content).__name__}")
    return content

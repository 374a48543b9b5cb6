"""What the vectors of a trained model say about a run: nine symptoms, and the setting that treats each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from lexforge.report.finding import Finding
from lexforge.report.model_numbers import FILE


@dataclass(frozen=True)
class Symptom:
    """What is looked for, and where healthy runs lie.

    Args:
        text: What the number is.
        threshold: The last number of a healthy run.
        healthy: The side of the threshold on which healthy runs lie.
        percent: Whether the number is a share.
    """

    text: str
    threshold: float
    healthy: Literal["below", "above"]
    percent: bool = True

    def judge(self, name: str, number: float | None, knob: str, advice: str, reason: str) -> Finding:
        """Compare a number with the threshold; without a number the finding says the reason."""
        side = "most" if self.healthy == "below" else "least"
        limit = f"at {side} {self._written(self.threshold)}"
        if number is None:
            return Finding(self.text, "not measured", limit, None, knob, reason, name)
        below = number <= self.threshold
        ok = below if self.healthy == "below" else number >= self.threshold
        return Finding(self.text, self._written(number), limit, ok, knob, "" if ok else advice, name, number)

    def _written(self, number: float) -> str:
        return f"{100 * number:.3g} %" if self.percent else f"{number:.3g}"


# Each threshold stands between the numbers of healthy runs and those of runs with the wrong setting; both are
# in docs/diagnosis.md.
SYMPTOMS = {
    "stop_words": Symptom("stop words among the ten strongest terms of a document", 0.25, "below"),
    "rare_weight": Symptom(
        "weight of the rarer half of a document's own terms, in mean weights of its active terms",
        0.75,
        "above",
        percent=False,
    ),
    "own_recall": Symptom("own words of a document that are active", 0.5, "above"),
    "expansion": Symptom("active terms of a document that are not in its text", 0.15, "above"),
    "everywhere": Symptom("active terms of a document that nearly every document activates", 0.15, "below"),
    "empty": Symptom("texts without an active term", 0.01, "below"),
    "dense": Symptom("share of the vocabulary that a text activates", 0.25, "below"),
    "query_density": Symptom("active terms of a query, in those of a document", 0.7, "below"),
}


def model_findings(loss: Mapping[str, Any], language: str, sample: Mapping[str, Any] | None) -> list[Finding]:
    """Judge the numbers of a model.

    Args:
        loss: The settings of the loss, as in config.json.
        language: The language of the stop words.
        sample: What `measure_symptoms` returned; None if the model was not measured.

    Returns:
        One finding per entry of `SYMPTOMS`.
    """
    numbers: dict[str, float | None] = {}
    symptoms = dict(SYMPTOMS)
    reasons = dict.fromkeys(SYMPTOMS, f"the run has no {FILE} yet, which it writes at its end")
    if language:
        text = f"stop words ({language}) among the ten strongest terms of a document"
        symptoms["stop_words"] = Symptom(text, SYMPTOMS["stop_words"].threshold, "below")
    if sample is not None:
        reasons = dict.fromkeys(SYMPTOMS, "no text of the sample has such terms")
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
        if not sample["stop_words"]:
            numbers["stop_words"] = None
            reasons["stop_words"] = "no entry of the vocabulary is a stop word of --language"
        if documents["own_terms"]:  # queries that are as long as the documents may have as many terms
            density = SYMPTOMS["query_density"]
            widest = max(density.threshold, 1.25 * queries["own_terms"] / documents["own_terms"])
            symptoms["query_density"] = Symptom(density.text, widest, "below")
    advice = _advice(loss)
    return [
        symptom.judge(name, numbers.get(name), *advice[name], reasons[name])
        for name, symptom in symptoms.items()
    ]


def _advice(loss: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """For each symptom the setting to change, and in which direction, with its present value.

    Plain FLOPS (no idf_alpha) reads no penalties of terms, so other settings help there.
    """

    def now(name: str) -> str:
        flag = name.replace("_", "-")
        return f"--loss.{flag} (now {loss.get(name, 0):g})"  # an older run lacks the settings of today

    lower, higher = f"lower {now('flops_weight')}", f"raise {now('flops_weight')}"
    if loss["idf_alpha"] is None:
        stop = (
            "--loss.idf-alpha and --loss.stopword-penalty",
            "set --loss.idf-alpha 4, --loss.stopword-penalty 15 and --loss.flops-weight 0.01, because plain "
            "FLOPS does not know which terms are stop words and reads no penalty for them",
        )
        rare = (
            "--loss.flops-weight",
            f"{lower}, because every term pays the same for its weight, rare ones included",
        )
    else:
        stop = (
            "--loss.stopword-penalty and --loss.flops-weight",
            f"raise {now('stopword_penalty')} and {higher}",
        )
        rare = (
            "--loss.idf-alpha",
            f"raise {now('idf_alpha')}, because a term pays exp(-alpha * idf), or {lower}",
        )
    if loss["positive_activation_weight"] > 2:
        greedy = (
            f"lower {now('positive_activation_weight')}, which rewards the stop words of the positive too"
        )
        stop = (stop[0], f"{stop[1]}; or {greedy}")
    query_flops = loss["query_flops_weight"]
    query_flops = loss["flops_weight"] if query_flops is None else query_flops
    return {
        "stop_words": stop,
        "rare_weight": rare,
        "own_recall": (
            "--loss.flops-weight",
            f"{lower}, or raise {now('self_reconstruction_weight')}",
        ),
        "expansion": (
            "--loss.flops-weight",
            f"{lower} or --finish.start-share (now {loss.get('start_share', 0):g}), or train for more steps; "
            f"{now('positive_activation_weight')} "
            "helps only terms that are active already",
        ),
        "everywhere": (
            "--loss.flops-weight",
            f"{higher}; where they are stop words, {stop[1]}; a pretrained encoder also gains from "
            "--start.idf-bias 0.35",
        ),
        "empty": (
            "--loss.flops-weight",
            f"{lower}, lengthen {now('ramp_fraction')} and raise {now('minimum_activation_weight')}",
        ),
        "dense": ("--loss.flops-weight", f"{higher}, or give --document-terms"),
        "query_density": (
            "--loss.query-flops-weight",
            f"raise --loss.query-flops-weight (now {query_flops:g}) above --loss.flops-weight, or give "
            "--query-terms",
        ),
    }

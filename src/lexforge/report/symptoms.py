"""The symptoms of a training that goes wrong, and what to change: one table for all who show them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Symptom:
    """A row of the table.

    Args:
        name: Short name, such as "stop_words".
        text: What the number is.
        limit: The last number of a healthy run; docs/diagnosis.md says what runs on both sides of it showed.
        healthy_side: The side of the limit on which healthy runs lie.
        advice: What to change, and in which direction. A setting stands in braces, by its place in
            config.json, such as `{loss.flops_weight}`.
        where_terms_are_wanted: A part of the advice, and what stands for it where a wanted number of terms
            per document sets the weight of FLOPS: that number, in the other direction. None changes nothing.
        percent: Whether the number is a share.
    """

    name: str
    text: str
    limit: float
    healthy_side: Literal["below", "above"]
    advice: str
    where_terms_are_wanted: tuple[str, str] | None = None
    percent: bool = True

    def is_healthy(self, number: float) -> bool:
        """Whether a number lies on the healthy side of the limit."""
        return number <= self.limit if self.healthy_side == "below" else number >= self.limit

    @property
    def limit_text(self) -> str:
        """What a healthy run shows, such as "at most 25 %"."""
        return f"at {'most' if self.healthy_side == 'below' else 'least'} {self.number_text(self.limit)}"

    def number_text(self, number: float) -> str:
        """A number of this symptom with its unit, such as "34 %"."""
        return f"{100 * number:.3g} %" if self.percent else f"{number:.3g}"

    def advice_text(self, write_setting: Callable[[str], str], *, terms_are_wanted: bool = False) -> str:
        """The advice as a sentence.

        Args:
            write_setting: Returns how a reader writes a setting, from its place in config.json: `flag_of`,
                `argument_of`, or `flag_of` with the values of a run.
            terms_are_wanted: Whether a wanted number of terms per document sets the weight of FLOPS.

        Returns:
            The sentence, without a full stop.
        """
        advice = self.advice
        if terms_are_wanted and self.where_terms_are_wanted is not None:
            advice = advice.replace(*self.where_terms_are_wanted)
        return re.sub(r"\{(.*?)\}", lambda setting: write_setting(setting[1]), advice)


def flag_of(setting: str, config: Mapping[str, Any] | None = None) -> str:
    """Write a setting as a flag of `lexforge train`, with the value that a run has.

    Args:
        setting: Its place in config.json, such as "loss.flops_weight".
        config: The settings of the run; None leaves the value out.

    Returns:
        Such as "--loss.flops-weight (now 0.01)".
    """
    if setting == "loss.temperature" and _value(config, "loss.phases"):
        return "the temperatures of the preset's phases (`LossSettings.phases` in Python)"
    flag = setting.removeprefix("train.").removeprefix("evaluation.")
    if _value(config, "loss.name"):  # of a recipe that writes the numbers of its loss without a prefix
        flag = flag.removeprefix("loss.")
    flag = "--" + flag.replace("_", "-")
    value = _value(config, setting)
    if value is None:
        return flag
    return f"{flag} (now {value:g})" if isinstance(value, int | float) else f"{flag} (now {value})"


def _value(config: Any, setting: str) -> Any:
    """The value of a setting in config.json; None where there is none."""
    for name in setting.split("."):
        config = config.get(name) if isinstance(config, Mapping) else None
    return config


def argument_of(setting: str) -> str:
    """Write a setting as an argument of Python, such as "flops_weight" for "loss.flops_weight"."""
    return setting.rpartition(".")[2]


MORE_TERMS = ("lower {loss.flops_weight}", "raise {document_terms}")
_ROWS = (
    Symptom(
        "stop_words",
        "stop words among the ten strongest terms of a document",
        0.25,
        "below",
        "raise {loss.stopword_penalty} and {loss.flops_weight}. Without {loss.idf_alpha} there is no "
        "penalty: set --loss.idf-alpha 4, --loss.stopword-penalty 15 and --loss.flops-weight 0.01. Where "
        "{loss.positive_activation_weight} is above 2, lower it",
        ("and {loss.flops_weight}", "and lower {document_terms}"),
    ),
    Symptom(
        "rare_weight",
        "weight of the rarer half of a document's own terms, in mean weights of its active terms",
        0.75,
        "above",
        "lower {loss.flops_weight}, or raise {loss.idf_alpha}, because a term pays exp(-alpha * idf)",
        MORE_TERMS,
        percent=False,
    ),
    Symptom(
        "own_recall",
        "own words of a document that are active, without stop words",
        0.5,
        "above",
        "raise {loss.own_activation_weight}, or lower {loss.flops_weight}",
        MORE_TERMS,
    ),
    Symptom(
        "expansion",
        "active terms of a document that are not in its text",
        0.15,
        "above",
        "lower {loss.flops_weight}, or lower {finish.start_share}",
        MORE_TERMS,
    ),
    Symptom(
        "everywhere",
        "active terms of a document that 90 % of the documents activate",
        0.15,
        "below",
        "raise {loss.flops_weight}; where {loss.positive_activation_weight} is above 2, lower it",
        ("raise {loss.flops_weight}", "lower {document_terms}"),
    ),
    Symptom(
        "empty",
        "texts without an active term, of queries or of documents",
        0.01,
        "below",
        "lower {loss.flops_weight}, lengthen {loss.ramp_fraction}, or raise {loss.minimum_activation_weight}",
        MORE_TERMS,
    ),
    Symptom(
        "dense",
        "share of the vocabulary that a query or a document activates",
        0.25,
        "below",
        "raise {loss.flops_weight}, or give {document_terms}",
        ("raise {loss.flops_weight}, or give {document_terms}", "lower {document_terms}"),
    ),
    Symptom(
        "query_density",
        "active terms of a query, in those of a document",
        0.7,
        "below",
        "raise {loss.query_flops_weight} above {loss.flops_weight}, or give {query_terms}",
        percent=False,
    ),
    Symptom(
        "scale",
        "InfoNCE at the start, where 1 is the loss of guessing",
        2.0,
        "below",
        "raise {loss.temperature}. Or divide the weight and the bias of the decoder by one factor before "
        "training",
        percent=False,
    ),
    Symptom(
        "oscillation",
        "jumps of the loss between lines of the log; 100 % is the loss of guessing",
        0.15,
        "below",
        "lower {train.learning_rate}, or raise {loss.temperature}",
    ),
    Symptom(
        "overfitting",
        "share of the best value on dev that was lost again",
        0.05,
        "below",
        "give {evaluation.best_measure}, which keeps the best checkpoint, more rows or fewer {train.steps}",
    ),
)
SYMPTOMS = {symptom.name: symptom for symptom in _ROWS}
"""Name -> the row of the table, in the order in which a diagnosis names them."""

"""What a diagnosis of a run says about one symptom, and how findings read as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """A symptom that a diagnosis looked for in a run, and what it found.

    Args:
        name: Short name of the symptom, such as "stop_words", by which docs/diagnosis.md lists it.
        symptom: What was looked for, such as "stop words among the ten strongest terms of a document".
        value: The number that was measured; None where it could not be measured.
        threshold: The last number at which a run counts as healthy.
        healthy: The side of the threshold on which healthy runs lie.
        ok: Whether the value is what a healthy run shows; None where it could not be measured.
        knob: The setting that moves the value, as it stands on the command line, such as
            "--loss.stopword-penalty"; empty where nothing is to be changed.
        advice: What to change, in which direction and why, as one sentence; where nothing could be measured,
            the reason; empty if `ok`.
        percent: Whether the numbers are shares, which a person reads in per cent.
    """

    name: str
    symptom: str
    value: float | None
    threshold: float
    healthy: Literal["below", "above"]
    ok: bool | None
    knob: str
    advice: str
    percent: bool = False

    @property
    def measured(self) -> str:
        """The value for a reader, such as "34 %"."""
        return "not measured" if self.value is None else self._text(self.value)

    @property
    def limit(self) -> str:
        """What a healthy run shows, for a reader, such as "at most 25 %"."""
        return f"at {'most' if self.healthy == 'below' else 'least'} {self._text(self.threshold)}"

    @property
    def line(self) -> str:
        """The finding as one line of text."""
        if self.ok is None:
            return f"{self.symptom}: not measured, because {self.advice}"
        numbers = f"{self.symptom}: {self.measured} (healthy: {self.limit})"
        return numbers if self.ok else f"{numbers}: {self.advice}"

    def _text(self, number: float) -> str:
        return f"{100 * number:.3g} %" if self.percent else f"{number:.3g}"


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
            unknown.setdefault(finding.advice, []).append(finding.name)
    lines += [f"? not measured: {', '.join(names)}, because {reason}" for reason, names in unknown.items()]
    healthy = [f"{finding.name} {finding.measured}" for finding in findings if finding.ok]
    if healthy:
        lines.append(f"healthy in {len(healthy)} of {len(findings)} respects: {', '.join(healthy)}")
    return "\n".join(lines)

"""What a diagnosis of a run says about one symptom, and how findings read as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """A symptom that a diagnosis looked for in a run, and what it found.

    Args:
        symptom: What was looked for, such as "stop words among the ten strongest terms".
        value: The number that was measured, with its unit, such as "34 %", or "not measured".
        threshold: What a healthy run shows, such as "at most 20 %".
        ok: Whether the value is what a healthy run shows; None where it could not be measured.
        knob: The setting that moves the value, as it stands on the command line, such as
            "--loss.stopword-penalty"; empty if there is none.
        advice: What to change and in which direction, as one sentence; where nothing could be measured, the
            reason; empty if `ok`.
        name: Short name of the symptom, such as "stop_words", by which docs/diagnosis.md lists it.
        number: The value as a number, for programs; None where it could not be measured.
    """

    symptom: str
    value: str
    threshold: str
    ok: bool | None
    knob: str
    advice: str
    name: str = ""
    number: float | None = None

    @property
    def line(self) -> str:
        """The finding as one line of text."""
        if self.ok is None:
            return f"{self.symptom}: {self.value}, because {self.advice}"
        numbers = f"{self.symptom}: {self.value} (healthy: {self.threshold})"
        return numbers if self.ok else f"{numbers}: {self.advice}"


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
    healthy = [f"{finding.name} {finding.value}" for finding in findings if finding.ok]
    if healthy:
        lines.append(f"healthy in {len(healthy)} of {len(findings)} respects: {', '.join(healthy)}")
    return "\n".join(lines)

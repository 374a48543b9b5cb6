"""What a diagnosis of a run says about one symptom."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """A symptom that a diagnosis looked for in a run, and what it found.

    Args:
        symptom: What was looked for, such as "stop words among the ten strongest terms".
        value: The number that was measured, with its unit, such as "34 %".
        threshold: What a healthy run shows, such as "at most 20 %".
        ok: Whether the value is what a healthy run shows.
        knob: The setting that moves the value, as it stands on the command line, such as
            "--loss.stopword-penalty"; empty if there is none.
        advice: What to change and in which direction, as one sentence; empty if `ok`.
    """

    symptom: str
    value: str
    threshold: str
    ok: bool
    knob: str
    advice: str

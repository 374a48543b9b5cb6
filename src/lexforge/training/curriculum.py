"""The curriculum as pure functions of training progress (docs/losses.md, section 9)."""

from __future__ import annotations

from collections.abc import Sequence

from lexforge.settings import Phase


def phase_at(phases: Sequence[Phase], progress: float) -> int:
    """Return the index of the phase in force.

    Args:
        phases: At least one phase, in order.
        progress: `global_step / max_steps`, in [0, 1].

    Returns:
        Index into `phases`; the last one at progress 1.

    Raises:
        ValueError: If progress lies outside [0, 1].
    """
    if not 0 <= progress <= 1:
        raise ValueError(f"progress must lie in [0, 1]; received {progress}")
    return next((index for index, phase in enumerate(phases) if progress < phase.until), len(phases) - 1)


def ramp_at(progress: float, ramp_fraction: float) -> float:
    """Return the share of the sparsity weights in force, which grows quadratically to 1 and then stays.

    Args:
        progress: `global_step / max_steps`, in [0, 1].
        ramp_fraction: Length of the ramp as a share of training; 0 puts the full weights in force at once.

    Returns:
        A number in [0, 1].

    Source: SPLADE v2 (arXiv 2109.10086), section 4: the regularisation weight grows quadratically.
    """
    if progress >= ramp_fraction:
        return 1.0
    return (progress / ramp_fraction) ** 2

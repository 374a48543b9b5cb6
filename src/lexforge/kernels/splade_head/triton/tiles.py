"""The tile sizes that the Triton SPLADE head has chosen by timing, to be kept and set again.

Other tile sizes sum in another order. A process that is to compute the same bits as an earlier one must
therefore take its choices instead of timing anew.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import Any

import torch

KERNELS = "lexforge.kernels.splade_head.triton.kernels"

logger = logging.getLogger(__name__)


def tuned_kernels() -> dict[str, Any]:
    """The kernels whose tile sizes are timed, by name."""
    from lexforge.kernels.splade_head.triton import kernels

    return {
        "forward": kernels.forward_kernel,
        "grad_hidden": kernels.grad_hidden_kernel,
        "grad_weight": kernels.grad_weight_kernel,
    }


def state() -> dict[str, Any]:
    """The choices of this process in JSON types, for `load_state`.

    Returns:
        `device`, the name of the GPU, and `kernels`: kernel name -> pairs of a tuning key (sizes, flags and
        dtypes) and the chosen configuration. Empty if no kernel has run.
    """
    if KERNELS not in sys.modules:  # Triton may not be installed
        return {}
    chosen = {
        name: [[list(key), config.all_kwargs()] for key, config in kernel.cache.items()]
        for name, kernel in tuned_kernels().items()
        if kernel.cache
    }
    return {"device": _device(), "kernels": chosen} if chosen else {}


def load_state(state: Mapping[str, Any]) -> None:
    """Make the kernels of this process use choices of an earlier one.

    A choice for another GPU, or one that this version of the kernels does not have, is left out with a
    warning; the kernel is timed then, and may sum in another order.

    Args:
        state: What `state` returned.
    """
    if state["device"] != _device():
        logger.warning(
            "the tile sizes were chosen on %s and this device is %s: they are timed anew, and sums may round "
            "in another way than before",
            state["device"],
            _device(),
        )
        return
    for name, kernel in tuned_kernels().items():
        for key, settings in state["kernels"].get(name, []):
            known = [config for config in kernel.configs if config.all_kwargs() == settings]
            if known:
                kernel.cache[tuple(key)] = known[0]
            else:
                logger.warning(
                    "the kernel %s has no configuration %s any more: it is timed anew", name, settings
                )


def _device() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"

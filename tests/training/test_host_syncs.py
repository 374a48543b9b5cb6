"""The host waits for the device at most twice per micro-batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sentence_transformers import SparseEncoder
from torch.utils._python_dispatch import TorchDispatchMode

from lexforge.losses import NeuralSparseLoss
from lexforge.sparsity import ActiveTermsController
from lexforge.training import SpladeTrainer

# Each of these makes the host wait until the device has computed a value, or a size.
WAITS = {"_local_scalar_dense", "item", "nonzero", "is_nonzero", "equal", "_unique2", "masked_select"}


class CountWaits(TorchDispatchMode):
    """Counts the operations that would make the host wait if the tensors were on a GPU.

    They are dispatched on the CPU as on a GPU, where copies to the CPU would be counted as well.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        copied = name in ("_to_copy", "copy_") and isinstance(result, torch.Tensor) and args[-1] is not result
        moved = copied and result.device.type == "cpu" and args[-1].device.type != "cpu"
        if name in WAITS or moved:
            self.found[name] += 1
        return result


@pytest.mark.parametrize("accumulation", [1, 2])
def test_the_host_waits_at_most_twice_per_micro_batch(
    tiny_splade: SparseEncoder,
    tmp_path: Path,
    make_trainer: Callable[..., SpladeTrainer],
    accumulation: int,
) -> None:
    """V26 with every term, teacher and curriculum: the loss, the trainer's sums and the checks of finiteness,
    including those after the step of the optimizer. Left out are the encoder and the backward pass, whose
    kernels on the CPU differ from those on a GPU, and the optimizer, which keeps its step count on the CPU.
    """
    trainer = make_trainer(
        tiny_splade, tmp_path, gradient_accumulation_steps=accumulation, arguments={"logging_steps": 100}
    )
    count = CountWaits()
    batches = 0
    training_step, forward, backward = (
        trainer.training_step,
        tiny_splade.forward,
        trainer.accelerator.backward,
    )

    def counted_step(*args: Any, **kwargs: Any) -> torch.Tensor:
        nonlocal batches
        batches += 1
        with count:
            return training_step(*args, **kwargs)

    def uncounted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            before = Counter(count.found)
            result = function(*args, **kwargs)
            count.found = before
            return result

        return call

    def counted_check() -> None:
        with count:
            check_parameters()

    check_parameters = trainer.check_parameters
    trainer.training_step = counted_step  # type: ignore[method-assign]
    trainer.check_parameters = counted_check  # type: ignore[method-assign]
    tiny_splade.forward = uncounted(forward)  # type: ignore[method-assign]
    trainer.accelerator.backward = uncounted(backward)  # type: ignore[method-assign]
    trainer.train()
    assert batches >= 6 * accumulation - 3  # an epoch of three batches ends with a step of one
    assert count.found.total() > 0
    assert count.found.total() <= 2 * batches, (batches, count.found)


def test_the_controller_of_active_terms_never_waits(tiny_splade: SparseEncoder) -> None:
    """Between two counts neither the factors nor the loss that multiplies them ask for a value."""
    loss = NeuralSparseLoss(tiny_splade, distillation_weight=0.0)
    loss.weights = dict.fromkeys(loss.weights, 0.0) | {"flops_query": 0.1, "flops_document": 0.1}
    controller = ActiveTermsController(
        loss, lambda: {"query": 8.0, "document": 18.0}, query_terms=4, document_terms=9
    )
    state: Any = SimpleNamespace(global_step=100, max_steps=1000)
    controller.on_step_begin(state, state, state)  # a count
    counted = dict(loss.sparsity_factors)
    rows = [torch.rand(3, 9), torch.rand(3, 9)]
    with CountWaits() as count:
        for state.global_step in (101, 102):
            controller.on_step_begin(state, state, state)
            loss.compute_loss_from_embeddings(rows)
            controller.on_substep_end(state, state, state)
            loss.compute_loss_from_embeddings(rows)
            controller.on_step_end(state, state, state)
    assert loss.sparsity_factors == counted
    assert counted["flops_query"] != 1
    assert count.found.total() == 0, count.found

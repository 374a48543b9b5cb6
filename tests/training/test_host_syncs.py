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
WAITS |= {"unique_consecutive", "unique_dim", "bincount"}
MASKS = (torch.bool, torch.uint8)


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
        if name in WAITS or moved or self._counts(name, args, kwargs or {}):
            self.found[name] += 1
        return result

    @staticmethod
    def _counts(name: str, args: Any, kwargs: Any) -> bool:
        """Whether the operation asks how many entries a mask or a count has, below what is dispatched."""
        if name == "repeat_interleave":
            return kwargs.get("output_size") is None
        if name in ("index", "index_put", "index_put_", "_index_put_impl_"):
            # One number is written without a count, as `masked_fill` would.
            one = name != "index" and args[2].numel() == 1 and not any(args[3:4])
            return not one and any(index is not None and index.dtype in MASKS for index in args[1])
        return False


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
    waits: list[Counter[str]] = []  # of each micro-batch
    training_step, forward, backward = (
        trainer.training_step,
        tiny_splade.forward,
        trainer.accelerator.backward,
    )

    def counted_step(*args: Any, **kwargs: Any) -> torch.Tensor:
        before = Counter(count.found)
        with count:
            loss = training_step(*args, **kwargs)
        waits.append(count.found - before)
        return loss

    def uncounted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            before = Counter(count.found)
            result = function(*args, **kwargs)
            count.found = before
            return result

        return call

    def counted_check() -> None:
        before = Counter(count.found)
        with count:
            check_parameters()
        waits[-1] += count.found - before

    check_parameters = trainer.check_parameters
    trainer.training_step = counted_step  # type: ignore[method-assign]
    trainer.check_parameters = counted_check  # type: ignore[method-assign]
    tiny_splade.forward = uncounted(forward)  # type: ignore[method-assign]
    trainer.accelerator.backward = uncounted(backward)  # type: ignore[method-assign]
    trainer.train()
    assert len(waits) >= 6 * accumulation - 3  # an epoch of three batches ends with a step of one
    assert any(waits)
    assert max(one.total() for one in waits) <= 2, waits


def test_what_counts_entries_waits() -> None:
    """The size of what these return is a value of the device; a mask that is filled by one number is none."""
    x, mask, places = torch.rand(3), torch.tensor([True, False, True]), torch.tensor([0, 2])
    waiting: list[Callable[[], object]] = [
        lambda: x[mask],
        lambda: x.index_put_([mask], torch.rand(2)),
        lambda: torch.index_put(x, [mask], torch.rand(2)),
        lambda: x.repeat_interleave(torch.tensor([0, 2, 1])),
        lambda: places.bincount(),
        lambda: places.unique_consecutive(),
        lambda: places.unique(),
        lambda: mask.nonzero(),
        lambda: x.sum().item(),
    ]
    free: list[Callable[[], object]] = [
        lambda: x[places],
        lambda: x.masked_fill(mask, 0.0),
        lambda: x.index_put_([places], torch.rand(2)),
        lambda: x.repeat_interleave(2),
        lambda: x.repeat_interleave(torch.tensor([0, 2, 1]), output_size=3),
    ]
    for operations, number in ((waiting, 1), (free, 0)):
        for place, operation in enumerate(operations):
            with CountWaits() as count:
                operation()
            assert count.found.total() == number, (place, count.found)


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

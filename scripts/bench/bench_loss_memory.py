"""Memory of a training step with the loss of preset V26 at a large vocabulary: what is kept, and the peak.

    python scripts/bench/bench_loss_memory.py

The encoder is one embedding layer with the fused SPLADE head on it, so that the rows of vocabulary width
decide the memory. `kept` is what autograd keeps for the loss beside the encoder's activations themselves, in
units of one `[B, V]` float32 tensor; it is counted by storage, so that a tensor that is saved twice counts
once. `step_peak` is the most resident memory during forward, loss and backward above that before them, in the
same unit, with the gradient of the encoder; the optimizer's step follows it and is part of the time. Rows go
to results/loss_memory.csv.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from common import append_rows, in_own_process, peak_mb, reset_peak
from torch import Tensor, nn

from lexforge.kernels import splade_head
from lexforge.losses import NeuralSparseLoss
from lexforge.losses.base import TEACHER_KEY

VOCABULARY, ROWS, COLUMNS, LENGTH, WIDTH = 250_002, 24, 3, 32, 128
BIAS = -3.5  # with logits of about unit variance it leaves some hundreds to thousands of terms active per row


class Encoder(nn.Module):
    """Token embeddings and the SPLADE head that shares their weight."""

    similarity_fn_name = "cosine"

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(VOCABULARY, WIDTH) / WIDTH**0.5)
        self.bias = nn.Parameter(torch.full((VOCABULARY,), BIAS))

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        """Write the activations `[B, V]`."""
        hidden = nn.functional.layer_norm(self.weight[features["input_ids"]], self.weight.shape[1:])
        features["sentence_embedding"] = splade_head(
            hidden, self.weight, self.bias, features["attention_mask"]
        )
        return features


def kept_bytes(embeddings: list[Tensor], loss: NeuralSparseLoss, features: list[dict[str, Any]]) -> int:
    """Bytes that the graph of the loss keeps beside the embeddings."""
    saved: dict[int, int] = {}
    own = {rows.untyped_storage().data_ptr() for rows in embeddings}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        total = torch.stack(list(loss.compute_loss(embeddings, features, None).values())).sum()
    del total  # until here the graph has kept its tensors, so that no address was used twice
    return sum(saved.values())


def run() -> dict[str, Any]:
    """Measure the memory; it runs in a fresh process, whose peak nothing else has raised."""
    torch.manual_seed(0)
    model = Encoder()
    loss = NeuralSparseLoss(model, penalty_weights=torch.rand(VOCABULARY))  # the numbers of V26
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, foreach=False)  # the same step each time
    features = [
        {
            "input_ids": torch.randint(VOCABULARY, (ROWS, LENGTH)),
            "attention_mask": torch.ones(ROWS, LENGTH, dtype=torch.long),
            TEACHER_KEY: torch.randn(ROWS, 64),
        }
        for _ in range(COLUMNS)
    ]

    def forward_backward() -> dict[str, Tensor]:
        parts = loss([dict(column) for column in features])
        torch.stack(list(parts.values())).sum().backward()
        return parts

    forward_backward()  # warms up, makes the gradients that the peak starts with
    optimizer.step()
    before, start = reset_peak(), time.perf_counter()
    parts = forward_backward()
    peak = peak_mb() - before
    optimizer.step()
    seconds = time.perf_counter() - start
    embeddings = [model(dict(column))["sentence_embedding"].detach().requires_grad_() for column in features]
    unit = ROWS * VOCABULARY * 4 / 1e6  # one [B, V] float32 in MB
    return {
        "vocabulary": VOCABULARY,
        "rows": ROWS,
        "columns": COLUMNS,
        "length": LENGTH,
        "width": WIDTH,
        "active": round(float(loss.metrics["terms/document"]), 1),
        "loss": round(float(sum(part.item() for part in parts.values())), 4),
        "kept": round(kept_bytes(embeddings, loss, features) / 1e6 / unit, 2),
        "step_peak": round(peak / unit, 2),
        "step_peak_mb": round(peak),
        "step_s": round(seconds, 2),
        "threads": torch.get_num_threads(),
    }


if __name__ == "__main__":
    append_rows("loss_memory", [in_own_process(run)])

"""Time and peak memory of one step of `NWSLoss` alone (forward and backward) over a long queue.

    python scripts/bench/bench_nws.py

Each aggregate and density of labels runs in a process of its own, on random vectors and label sets. Rows go
to results/nws.csv.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from common import append_rows, in_own_process, measure
from torch import Tensor, nn

from lexforge.losses import NWSLoss

BATCH, QUEUE, LABELS, WIDTH = 64, 65_536, 118, 384
LABELS_A_TEXT = (1.2, 8.0)  # those of Reuters-21578 and of KOTE


class Width(nn.Module):
    """What NWSLoss asks of a model that it never calls: the width of its embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def preprocess(self, texts: list[str]) -> dict[str, Tensor]:
        """One row of ones a text."""
        return {"ones": torch.ones(len(texts), WIDTH)}

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        """The scaled rows."""
        return {"sentence_embedding": features["ones"] * self.scale}


def run(aggregate: Literal["mean", "max"], labels_a_text: float) -> dict[str, Any]:
    """One setting in a process of its own."""
    torch.manual_seed(0)

    def label_sets(rows: int) -> Tensor:
        return (torch.rand(rows, LABELS) < labels_a_text / LABELS).to(torch.uint8)

    similarity = torch.rand(LABELS, LABELS)
    loss = NWSLoss(Width(), (similarity + similarity.T) / 2, queue_size=QUEUE, aggregate=aggregate)
    assert loss.queue is not None
    loss.queue.enqueue(torch.randn(QUEUE, WIDTH), label_sets(QUEUE))
    queries, keys = torch.randn(BATCH, WIDTH, requires_grad=True), torch.randn(BATCH, WIDTH)
    query_labels = label_sets(BATCH)

    def step() -> None:
        loss.compute_loss_from_embeddings([queries, keys], query_labels).backward()

    shape = {"batch": BATCH, "queue": QUEUE, "labels": LABELS, "width": WIDTH}
    asked = {"labels_a_text": labels_a_text, "aggregate": aggregate, "threads": torch.get_num_threads()}
    return {**shape, **asked, **measure(step, repeats=5)}


if __name__ == "__main__":
    for labels in LABELS_A_TEXT:
        for way in ("mean", "max"):
            append_rows("nws", [in_own_process(run, way, labels)])

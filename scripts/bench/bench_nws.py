"""Time and peak memory of one step of NWS alone (forward and backward) over a long queue.

    python scripts/bench/bench_nws.py

For each aggregate and density of labels, the function `nws`, which checks and normalises all it gets, and the
step of `NWSLoss`, whose queue is checked and normalised as keys enter it, run in a process of their own. The
value is compared with a float64 evaluation over a part of the queue first. Rows go to results/nws.csv.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
import tyro
from common import append_rows, in_own_process, measure
from torch import Tensor, nn

from lexforge.losses import NWSLoss
from lexforge.losses.functional import nws

CHECKED = 2048  # references of the comparison in float64


@dataclass(frozen=True)
class Config:
    """Sizes."""

    batch: int = 64
    queue: int = 65_536
    labels: int = 118
    width: int = 384
    labels_a_text: tuple[float, ...] = (1.2, 8.0)  # those of Reuters-21578 and of KOTE
    temperature: float = 0.07
    repeats: int = 5
    seed: int = 0


class Width(nn.Module):
    """What NWSLoss asks of a model that it never calls: the width of its embeddings."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def preprocess(self, texts: list[str]) -> dict[str, Tensor]:
        """One row of ones a text."""
        return {"ones": torch.ones(len(texts), len(self.scale))}

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        """The scaled rows."""
        return {"sentence_embedding": features["ones"] * self.scale}


def inputs(cfg: Config, labels_a_text: float) -> dict[str, Tensor]:
    """Random vectors and label sets."""
    generator = torch.Generator().manual_seed(cfg.seed)

    def label_sets(rows: int) -> Tensor:
        drawn = torch.rand(rows, cfg.labels, generator=generator) < labels_a_text / cfg.labels
        return drawn.to(torch.uint8)

    similarity = torch.rand(cfg.labels, cfg.labels, generator=generator)
    return {
        "queries": torch.randn(cfg.batch, cfg.width, generator=generator),
        "query_labels": label_sets(cfg.batch),
        "prototypes": torch.randn(cfg.labels, cfg.width, generator=generator),
        "label_similarity": (similarity + similarity.T) / 2,
        "keys": torch.randn(cfg.batch, cfg.width, generator=generator),
        "queue": torch.randn(cfg.queue, cfg.width, generator=generator),
        "queue_labels": label_sets(cfg.queue),
    }


def run(cfg: Config, what: str, aggregate: Literal["mean", "max"], labels_a_text: float) -> dict[str, Any]:
    """One kind of step in a process of its own."""
    given = inputs(cfg, labels_a_text)
    settings: dict[str, Any] = {"aggregate": aggregate, "temperature": cfg.temperature}
    part = given | {"key_labels": given["query_labels"], "queue": given["queue"][:CHECKED]}
    part["queue_labels"] = part["queue_labels"][:CHECKED]
    exact = nws(**{name: t.double() if t.is_floating_point() else t for name, t in part.items()}, **settings)
    torch.testing.assert_close(nws(**part, **settings).double(), exact, rtol=1e-5, atol=1e-4)
    queries = given["queries"].requires_grad_()
    if what == "nws":
        given["prototypes"].requires_grad_()

        def step() -> None:
            nws(**given, key_labels=given["query_labels"], **settings).backward()
    else:
        loss = NWSLoss(Width(cfg.width), given["label_similarity"], queue_size=cfg.queue, **settings)
        assert loss.queue is not None
        loss.queue.enqueue(given.pop("queue"), given.pop("queue_labels"))

        def step() -> None:
            loss.compute_loss_from_embeddings([queries, given["keys"]], given["query_labels"]).backward()

    shape = {"batch": cfg.batch, "queue": cfg.queue, "labels": cfg.labels, "width": cfg.width}
    asked = {"labels_a_text": labels_a_text, "aggregate": aggregate, "threads": torch.get_num_threads()}
    return {"step": what, **shape, **asked, **measure(step, cfg.repeats)}


def main(cfg: Config) -> None:
    """Every kind of step."""
    for labels_a_text in cfg.labels_a_text:
        for aggregate in ("mean", "max"):
            for what in ("nws", "NWSLoss"):
                append_rows("nws", [in_own_process(run, cfg, what, aggregate, labels_a_text)])


if __name__ == "__main__":
    main(tyro.cli(Config, description=__doc__))

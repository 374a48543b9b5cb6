"""Training step, largest batch and encoding on a GPU by the size of the encoder, with and without our head.

    python scripts/bench/bench_train_step_gpu.py --out scripts/bench/results

4.4 to 560 million random weights, random tokens, two columns of 32 texts of 128 tokens, bf16 autocast,
in-batch InfoNCE + FLOPS, AdamW. The output bias is shifted: about 1,700 terms a row are active. The largest
batch takes two steps. Documents per second are those of a forward pass of 256 texts without gradients.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from common import SIZES, Size
from gpu_common import Bench, fits, largest
from sentence_transformers import SparseEncoder
from sentence_transformers.sparse_encoder.modules import SpladePooling, Transformer
from torch import Tensor
from transformers import BertConfig, BertForMaskedLM, BertTokenizerFast

from lexforge.models import fuse_splade_head

BATCH, LENGTH, ACTIVE, ENCODED, MOST_ROWS = 32, 128, 1_700, 256, 8192
SMOKE = {"smoke": Size(1, 32, 2, 50)}


def build(bench: Bench, size: Size) -> SparseEncoder:
    """A plain `SparseEncoder` over a random BERT; the tokenizer is there for the loader only."""
    config = BertConfig(
        vocab_size=size.terms,
        hidden_size=size.width,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        intermediate_size=4 * size.width,
    )
    small = BertConfig(vocab_size=5, hidden_size=8, num_hidden_layers=1, num_attention_heads=1)
    with tempfile.TemporaryDirectory() as folder:
        vocabulary = Path(folder) / "vocab.txt"
        vocabulary.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n", encoding="utf-8")
        BertTokenizerFast(vocab=str(vocabulary)).save_pretrained(folder)
        BertForMaskedLM(small).save_pretrained(folder)
        transformer = Transformer(folder, transformer_task="fill-mask")
    torch.manual_seed(0)
    with torch.device(bench.device):  # not through the disk: the largest has 2 GB
        transformer.model = BertForMaskedLM(config)
    return SparseEncoder(modules=[transformer, SpladePooling("max")], device=bench.device).train()


def embed(model: SparseEncoder, ids: Tensor) -> Tensor:
    features = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return model(features)["sentence_embedding"]


def shift_bias(model: SparseEncoder, ids: Tensor, active: int) -> None:
    """Set the output bias so that `active` terms of the first row stay active."""
    decoder = model[0].model.get_output_embeddings()
    with torch.no_grad():
        decoder.bias.fill_(10.0)
        best = embed(model, ids[:1]).float().expm1()
        decoder.bias.sub_(best[0].topk(active).values[-1])


def step(model: SparseEncoder, optimizer: torch.optim.Optimizer, query: Tensor, document: Tensor) -> float:
    """One training step; returns the loss."""
    with torch.autocast(query.device.type, torch.bfloat16):
        first, second = embed(model, query).float(), embed(model, document).float()
    loss = F.cross_entropy(first @ second.T, torch.arange(len(query), device=query.device))
    loss = loss + 1e-3 * (first.mean(0).square().sum() + second.mean(0).square().sum())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


@torch.no_grad()
def encode(model: SparseEncoder, ids: Tensor) -> Tensor:
    with torch.autocast(ids.device.type, torch.bfloat16):
        return embed(model, ids)


def measure(
    bench: Bench, model: SparseEncoder, optimizer: torch.optim.Optimizer, rows: int, length: int
) -> dict[str, object]:
    """Time and peak memory of a step, largest batch, documents per second; empty where it did not fit."""
    terms = model[0].model.config.vocab_size

    def columns(batch: int) -> Tensor:
        return torch.randint(5, terms, (2, batch, length), device=bench.device)

    def two_steps(batch: int) -> None:
        for _ in range(2):
            step(model, optimizer, *columns(batch))

    found: dict[str, object] = dict.fromkeys(
        ("loss", "step_ms", "step_ms_20", "step_ms_80", "peak_mb", "largest_batch", "documents_per_s"), ""
    )
    call = partial(step, model, optimizer, *columns(rows))
    if fits(call):
        values = (round(call(), 3), *bench.times_ms(call), bench.peak_mb(call))
        found |= dict(zip(found, values, strict=False))
    found["largest_batch"] = largest(
        lambda batch: fits(partial(two_steps, batch)), 2, cap=4 if bench.smoke else MOST_ROWS
    )
    model.eval()
    ids = columns(4 if bench.smoke else ENCODED)[0]
    if fits(partial(encode, model, ids)):
        found["documents_per_s"] = round(1000 * len(ids) / bench.times_ms(partial(encode, model, ids))[0])
    model.train()
    return found


def main() -> None:
    bench = Bench("train_step_gpu", __doc__)
    sizes, rows, length, active = (SMOKE, 2, 10, 5) if bench.smoke else (SIZES, BATCH, LENGTH, ACTIVE)
    for name, size in sizes.items():
        if bench.spent(f"training step of {name}"):
            return
        model = build(bench, size)
        parameters = sum(parameter.numel() for parameter in model.parameters()) / 1e6
        shift_bias(model, torch.randint(5, size.terms, (1, length), device=bench.device), active)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=not bench.smoke)
        for impl in ("sentence-transformers", "fused"):
            if impl == "fused":
                fuse_splade_head(model)
            shape = {"size": name, "parameters_m": round(parameters, 1), "V": size.terms, "D": size.width}
            shape |= {"B": rows, "L": length, "impl": impl}
            bench.append({**shape, **measure(bench, model, optimizer, rows, length)})
        del model, optimizer


if __name__ == "__main__":
    main()

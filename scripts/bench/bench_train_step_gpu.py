"""Training step of a BERT-size SPLADE on a GPU, plain and with the fused head: time and peak memory.

    python scripts/bench/bench_train_step_gpu.py --out scripts/bench/results

Random weights from a config (12 layers, D 768; V 30,522, then 250,002), random tokens, two columns, bf16
autocast, in-batch InfoNCE + FLOPS, AdamW. The output bias is shifted: about 1,700 terms a row are active.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from gpu_common import Bench, fits
from sentence_transformers import SparseEncoder
from sentence_transformers.sparse_encoder.modules import SpladePooling, Transformer
from torch import Tensor
from transformers import BertConfig, BertForMaskedLM, BertTokenizerFast

from lexforge.models import fuse_splade_head

# V, B, L
CASES = [(30_522, 32, 192), (30_522, 128, 128), (250_002, 16, 192)]


def build(bench: Bench, V: int) -> SparseEncoder:
    """A plain `SparseEncoder` over a random BERT; the tokenizer is there for the loader only."""
    small = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    with tempfile.TemporaryDirectory() as folder:
        vocabulary = Path(folder) / "vocab.txt"
        vocabulary.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n", encoding="utf-8")
        BertTokenizerFast(vocab=str(vocabulary)).save_pretrained(folder)
        torch.manual_seed(0)
        model = BertForMaskedLM(BertConfig(vocab_size=V, **(small if bench.smoke else {})))
        model.save_pretrained(folder)
        transformer = Transformer(folder, transformer_task="fill-mask")
    return SparseEncoder(modules=[transformer, SpladePooling("max")], device=bench.device).train()


def encode(model: SparseEncoder, ids: Tensor) -> Tensor:
    features = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return model(features)["sentence_embedding"]


def shift_bias(model: SparseEncoder, ids: Tensor, active: int) -> None:
    """Set the output bias so that `active` terms of the first row stay active."""
    decoder = model[0].model.get_output_embeddings()
    with torch.no_grad():
        decoder.bias.fill_(10.0)
        best = encode(model, ids[:1]).float().expm1()
        decoder.bias.sub_(best[0].topk(active).values[-1])


def step(model: SparseEncoder, optimizer: torch.optim.Optimizer, query: Tensor, document: Tensor) -> float:
    """One training step; returns the loss."""
    with torch.autocast(query.device.type, torch.bfloat16):
        first, second = encode(model, query).float(), encode(model, document).float()
    loss = F.cross_entropy(first @ second.T, torch.arange(len(query), device=query.device))
    loss = loss + 1e-3 * (first.mean(0).square().sum() + second.mean(0).square().sum())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def main() -> None:
    bench = Bench("train_step_gpu", __doc__)
    for V, B, L in [(50, 2, 10)] if bench.smoke else CASES:
        if bench.spent(f"training step {V} {B} {L}"):
            return
        model = build(bench, V)
        query, document = torch.randint(5, V, (2, B, L), device=bench.device)
        shift_bias(model, query, 5 if bench.smoke else 1_700)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)

        for impl in ("sentence-transformers", "fused"):
            if impl == "fused":
                fuse_splade_head(model)
            call = partial(step, model, optimizer, query, document)
            row = {"V": V, "D": 32 if bench.smoke else 768, "B": B, "L": L, "impl": impl}
            if fits(call):
                values = (round(call(), 3), *bench.times_ms(call), bench.peak_mb(call))
            else:
                values = ("out of memory", "", "", "", "")
            columns = ("loss", "step_ms", "step_ms_20", "step_ms_80", "peak_mb")
            bench.append({**row, **dict(zip(columns, values, strict=True))})


if __name__ == "__main__":
    main()

"""Training step, largest batch and encoding on a GPU by the size of the encoder, with and without our head.

    python scripts/bench/bench_train_step_gpu.py --out scripts/bench/results

4.4 to 560 million random weights, random tokens, two columns of 32 texts of 128 tokens, bf16 autocast,
in-batch InfoNCE + FLOPS, AdamW. The output bias is shifted: about 1,700 terms a row are active. The largest
batch takes two steps. Documents per second are those of a forward pass of 256 texts without gradients.

Then XLM-R base takes steps of the whole loss of V26 and of `lexforge`: 24 rows of a query, an answer and the
preset's negatives, 192 tokens a text, and a teacher of 1,024 numbers a text. Their names stand behind `impl`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
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

from lexforge.losses import NeuralSparseLoss
from lexforge.losses.base import TEACHER_KEY
from lexforge.models import fuse_splade_head
from lexforge.settings import PRESETS

BATCH, LENGTH, ACTIVE, ENCODED, MOST_ROWS = 32, 128, 1_700, 256, 8192
LOSS_BATCH, LOSS_LENGTH, TEACHER_WIDTH = 24, 192, 1024  # of V26
LOSSES = ("v26", "lexforge")
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


def infonce_and_flops(model: SparseEncoder, columns: Tensor) -> Tensor:
    """The loss of a query and a document, ids `[2, B, L]`."""
    with torch.autocast(columns.device.type, torch.bfloat16):
        first, second = (embed(model, column).float() for column in columns)
    loss = F.cross_entropy(first @ second.T, torch.arange(len(first), device=first.device))
    return loss + 1e-3 * (first.mean(0).square().sum() + second.mean(0).square().sum())


def loss_of_preset(model: SparseEncoder, name: str) -> Callable[[Tensor], Tensor]:
    """The whole loss of a preset on ids `[columns, B, L]`, taught by random embeddings."""
    settings = PRESETS[name].loss
    model.similarity_fn_name = settings.similarity
    terms = model[0].model.config.vocab_size
    weights = None if settings.idf_alpha is None else torch.ones(terms)
    loss = NeuralSparseLoss(model, penalty_weights=weights, **settings.arguments()).to(model.device)

    def of(columns: Tensor) -> Tensor:
        features = [
            {
                "input_ids": ids,
                "attention_mask": torch.ones_like(ids),
                TEACHER_KEY: torch.randn(len(ids), TEACHER_WIDTH, device=ids.device),
            }
            for ids in columns
        ]
        with torch.autocast(columns.device.type, torch.bfloat16):
            parts: dict[str, Tensor] = loss(features, None)
        return torch.stack(list(parts.values())).sum()

    return of


def step(loss_of: Callable[[Tensor], Tensor], optimizer: torch.optim.Optimizer, columns: Tensor) -> float:
    """One training step; returns the loss."""
    loss = loss_of(columns)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


@torch.no_grad()
def encode(model: SparseEncoder, ids: Tensor) -> Tensor:
    with torch.autocast(ids.device.type, torch.bfloat16):
        return embed(model, ids)


def measure_steps(
    bench: Bench,
    loss_of: Callable[[Tensor], Tensor],
    optimizer: torch.optim.Optimizer,
    columns: Callable[[int], Tensor],
    rows: int,
) -> dict[str, object]:
    """Time and peak memory of a step, and the largest batch; empty where it did not fit."""

    def two_steps(batch: int) -> None:
        for _ in range(2):
            step(loss_of, optimizer, columns(batch))

    found: dict[str, object] = dict.fromkeys(
        ("loss", "step_ms", "step_ms_20", "step_ms_80", "peak_mb", "largest_batch", "documents_per_s"), ""
    )
    call = partial(step, loss_of, optimizer, columns(rows))
    if fits(call):
        values = (round(call(), 3), *bench.times_ms(call), bench.peak_mb(call))
        found |= dict(zip(found, values, strict=False))
    found["largest_batch"] = largest(
        lambda batch: fits(partial(two_steps, batch)), 2, cap=4 if bench.smoke else MOST_ROWS
    )
    return found


def documents_per_second(bench: Bench, model: SparseEncoder, ids: Tensor) -> object:
    """Documents encoded per second; empty if they did not fit."""
    model.eval()
    fit = fits(partial(encode, model, ids))
    found = round(1000 * len(ids) / bench.times_ms(partial(encode, model, ids))[0]) if fit else ""
    model.train()
    return found


def random_columns(bench: Bench, terms: int, columns: int, length: int, batch: int) -> Tensor:
    """Random ids `[columns, batch, length]`."""
    return torch.randint(5, terms, (columns, batch, length), device=bench.device)


def measure_presets(bench: Bench, name: str, size: Size) -> None:
    """Append a row for the whole loss of each preset, with the stock head and with ours."""
    rows, length = (2, 10) if bench.smoke else (LOSS_BATCH, LOSS_LENGTH)
    for impl in ("sentence-transformers", "fused"):
        for preset in LOSSES:
            if bench.spent(f"steps of {preset} of {name}"):
                return
            model = build(bench, size)
            active = 5 if bench.smoke else ACTIVE
            shift_bias(model, random_columns(bench, size.terms, 1, length, 1)[0], active)
            if impl == "fused":
                fuse_splade_head(model)
            columns = partial(
                random_columns, bench, size.terms, 2 + PRESETS[preset].data.negatives_per_row, length
            )
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=not bench.smoke)
            parameters = sum(parameter.numel() for parameter in model.parameters()) / 1e6
            shape = {"size": name, "parameters_m": round(parameters, 1), "V": size.terms, "D": size.width}
            shape |= {"B": rows, "L": length, "impl": f"{impl}, {preset}"}
            loss_of = loss_of_preset(model, preset)
            bench.append({**shape, **measure_steps(bench, loss_of, optimizer, columns, rows)})
            del model, optimizer, loss_of


def main() -> None:
    bench = Bench("train_step_gpu", __doc__)
    sizes, rows, length, active = (SMOKE, 2, 10, 5) if bench.smoke else (SIZES, BATCH, LENGTH, ACTIVE)
    for name, size in sizes.items():
        if bench.spent(f"training step of {name}"):
            return
        model = build(bench, size)
        parameters = sum(parameter.numel() for parameter in model.parameters()) / 1e6
        columns = partial(random_columns, bench, size.terms, 2, length)
        shift_bias(model, columns(1)[0], active)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=not bench.smoke)
        for impl in ("sentence-transformers", "fused"):
            if impl == "fused":
                fuse_splade_head(model)
            shape = {"size": name, "parameters_m": round(parameters, 1), "V": size.terms, "D": size.width}
            shape |= {"B": rows, "L": length, "impl": impl}
            found = measure_steps(bench, partial(infonce_and_flops, model), optimizer, columns, rows)
            ids = columns(4 if bench.smoke else ENCODED)[0]
            found["documents_per_s"] = documents_per_second(bench, model, ids)
            bench.append({**shape, **found})
        del model, optimizer
    for name in ("smoke",) if bench.smoke else ("xlmr",):
        measure_presets(bench, name, sizes[name])


if __name__ == "__main__":
    main()

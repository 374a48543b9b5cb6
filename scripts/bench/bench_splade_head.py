"""Time and peak memory of the SPLADE head beside sentence-transformers, each measurement in its own process.

    python scripts/bench/bench_splade_head.py d384
    python scripts/bench/bench_splade_head.py d384 --sweep
    python scripts/bench/bench_splade_head.py recorded --model ../shared/models/splade-tiny --texts FILE.jsonl

The random cases shift the bias so that about 16, 1,700 or all terms of a row are active; "recorded" takes the
states, weights and lengths of a real model and real texts. "tiled" takes the backends that were measured,
"tiled float32" the plain product; `--sweep` compares the two in one process over many densities, and
prints where the first is more than a tenth slower. Rows go to results/splade_head.csv.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from typing import Any

import torch
from common import append_rows, in_own_process, measure, read_texts
from sentence_transformers.sparse_encoder.modules import SpladePooling, Transformer

from lexforge.kernels import splade_head
from lexforge.kernels.splade_head.choice import VARIABLE

# name: vocabulary, width, rows, tokens a row
RANDOM_CASES = {
    "d128": (30_522, 128, 32, 128),
    "d384": (30_522, 384, 32, 128),
    "d768": (30_522, 768, 32, 128),
    "v250k": (250_002, 768, 8, 128),
}
ACTIVE = {"sparse": 16, "typical": 1_700, "dense": None, "all": None}
PEER = "sentence-transformers"
PLAIN = "tiled float32"
IMPLEMENTATIONS = ("matrix product", "tiled", PLAIN, PEER)
SWEEP = (4, 16, 200, 800, 1_700, 2_500, 4_000, 7_000, 12_000, 20_000, "all")  # active terms of a row
Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def random_inputs(case: str, density: str | int, padding: bool) -> Inputs:
    """Hidden states, weight, bias and mask with the wanted number of active terms a row."""
    terms, width, rows, length = RANDOM_CASES[case]
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(rows, length, width, generator=generator)
    weight = torch.randn(terms, width, generator=generator) / width**0.5
    largest = torch.cat([(weight[i : i + 8192] @ hidden[0].t()).amax(1) for i in range(0, terms, 8192)])
    active = ACTIVE[str(density)] if density in ACTIVE else int(density)
    threshold = float(largest.min()) - 1.0 if active is None else float(largest.topk(active).values[-1])
    lengths = torch.randint(length // 8, length + 1, (rows, 1), generator=generator)
    mask = torch.arange(length) < (lengths if padding else length)
    return hidden, weight, torch.full((terms,), -threshold), mask.expand(rows, -1).long().contiguous()


def recorded_inputs(model: str, texts: str) -> Inputs:
    """States of the first 32 texts (field text of JSON lines), 128 tokens at most."""
    transformer = Transformer(model, transformer_task="fill-mask", max_seq_length=128)
    batch = transformer.preprocess(read_texts(texts, 32))
    decoder = transformer.model.get_output_embeddings()
    states: list[torch.Tensor] = []
    decoder.register_forward_pre_hook(lambda module, args: states.append(args[0]))
    with torch.no_grad():
        transformer(dict(batch))
    return states[0], decoder.weight.detach(), decoder.bias.detach(), batch["attention_mask"]


def head(impl: str, hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, mask: torch.Tensor):
    """One forward of an implementation, training mode as autograd says."""
    if impl == "matrix product":
        return weight @ hidden[mask.bool()].t()
    if impl == PEER:
        pooling = SpladePooling("max").train(torch.is_grad_enabled())
        logits = torch.nn.functional.linear(hidden, weight, bias)
        return pooling({"token_embeddings": logits, "attention_mask": mask})["sentence_embedding"]
    os.environ[VARIABLE] = "float32" if impl == PLAIN else "measured"
    return splade_head(hidden, weight, bias, mask, impl="tiled" if impl == PLAIN else impl)


def run(impl: str, backward: bool, inputs: list[Any], repeats: int) -> dict[str, Any]:
    """Measure one implementation, then check it against the reference on two rows; in a process of its own.

    Nothing of the batch is computed before: memory that was used and freed would not count again.
    """
    hidden, weight, bias, mask = random_inputs(*inputs) if len(inputs) == 3 else recorded_inputs(*inputs)
    tensors = [t.requires_grad_(backward) for t in (hidden, weight, bias)]

    def call() -> None:
        with torch.set_grad_enabled(backward):
            out = head(impl, *tensors, mask)
            if backward:
                torch.autograd.grad(out, tensors, torch.ones_like(out))

    cost = measure(call, repeats)
    return {**_sizes(impl, backward, *tensors, mask), **cost}


def sweep(case: str, density: str | int, backward: bool, repeats: int) -> list[dict[str, Any]]:
    """Time the measured backends and the plain product in turn, so that both meet the same load."""
    hidden, weight, bias, mask = random_inputs(case, density, False)
    tensors = [t.requires_grad_(backward) for t in (hidden, weight, bias)]
    seconds: dict[str, list[float]] = {"tiled": [], PLAIN: []}
    for repeat in range(repeats + 1):
        for impl, found in seconds.items():
            start = time.perf_counter()
            with torch.set_grad_enabled(backward):
                out = head(impl, *tensors, mask)
                if backward:
                    torch.autograd.grad(out, tensors, torch.ones_like(out))
            if repeat:  # the first one warms up
                found.append(time.perf_counter() - start)
    rows = []
    for impl, found in seconds.items():
        row = {"case": case, "density": density, **_sizes(impl, backward, *tensors, mask)}
        times = {"median_s": statistics.median(found), "min_s": min(found), "max_s": max(found)}
        rows.append(row | {name: round(value, 5) for name, value in times.items()} | {"peak_mb": ""})
    if rows[0]["min_s"] > 1.1 * rows[1]["min_s"]:
        print(
            f"{density}: {rows[0]['min_s']} s against {rows[1]['min_s']} s of the plain product", flush=True
        )
    return rows


def _sizes(
    impl: str,
    backward: bool,
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    mask: torch.Tensor,
) -> dict[str, Any]:
    """The columns that say what was computed, after a check against the reference on two rows."""
    with torch.no_grad():
        pooled = splade_head(hidden, weight, bias, mask)
        if impl != "matrix product":
            expected = head("reference", hidden[:2], weight, bias, mask[:2])
            torch.testing.assert_close(head(impl, hidden[:2], weight, bias, mask[:2]), expected)
    return {
        "terms": len(weight),
        "width": hidden.shape[2],
        "rows": hidden.shape[0],
        "tokens": int(mask.sum()),
        "padded_tokens": mask.numel(),
        "active_per_row": round(float((pooled > 0).sum(1).float().mean()), 1),
        "impl": impl,
        "pass": "forward + backward" if backward else "forward",
    }


def main() -> None:
    """Run one case and append its rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("case", choices=[*RANDOM_CASES, "recorded"])
    parser.add_argument("--density", nargs="*", help="sparse, typical, dense, or a number of active terms")
    parser.add_argument("--impl", choices=IMPLEMENTATIONS, nargs="*", default=IMPLEMENTATIONS)
    parser.add_argument("--sweep", action="store_true", help="measured backends and float32, many densities")
    parser.add_argument("--padding", action="store_true", help="rows of 1/8 to all of the tokens")
    parser.add_argument("--model", help="recorded: folder of a masked language model")
    parser.add_argument("--texts", help="recorded: corpus.jsonl")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    if args.case == "recorded":
        if args.model is None or args.texts is None:
            parser.error("recorded needs --model and --texts")
        cases = {"recorded": [args.model, args.texts]}
    else:
        cases = {
            density: [args.case, density, args.padding]
            for density in args.density or ("sparse", "typical", "dense")
        }
    if args.sweep:
        for density in args.density or SWEEP:
            for backward in (False, True):
                append_rows("splade_head", sweep(args.case, density, backward, args.repeats))
        return
    runs = [(impl, backward) for backward in (False, True) for impl in args.impl]
    for density, inputs in cases.items():
        for impl, backward in runs:
            if impl == "matrix product" and backward:
                continue
            row = in_own_process(run, impl, backward, inputs, args.repeats)
            append_rows("splade_head", [{"case": args.case, "density": density, **row}])


if __name__ == "__main__":
    main()

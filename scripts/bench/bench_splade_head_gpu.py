"""Time, peak memory and largest batch of the SPLADE head on a GPU, bf16 autocast over float32 weights.

    python scripts/bench/bench_splade_head_gpu.py --out scripts/bench/results
    TRITON_INTERPRET=1 python scripts/bench/bench_splade_head_gpu.py --smoke    # on the CPU

Beside sentence-transformers (logits, then its SpladePooling) in the same run, after checking that the results
agree. The bias is shifted so that about 16, 1,700 or all terms of a row are active.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from gpu_common import Bench, fits, largest
from sentence_transformers.sparse_encoder.modules import SpladePooling
from torch import Tensor

from lexforge.kernels import splade_head
from lexforge.kernels.splade_head.triton import kernels

# V, D, B, L, active terms a row (None: all)
CASES = [
    (30_522, 768, 32, 128, 1_700),
    (30_522, 768, 32, 128, 16),
    (30_522, 768, 32, 128, None),
    (250_002, 768, 16, 192, 1_700),
    (30_522, 384, 32, 128, 1_700),
    (250_002, 768, 16, 192, None),
    (30_522, 128, 32, 128, 1_700),
    (30_522, 768, 32, 192, 1_700),
    (30_522, 768, 128, 32, 1_700),
]
SMOKE_CASES = [(40, 16, 2, 10, 5), (40, 16, 2, 10, None)]
BATCH_SHAPES = [(30_522, 768, 192), (250_002, 768, 192)]
IMPLEMENTATIONS = ("sentence-transformers", "triton", "tiled")
EMPTY = dict.fromkeys(("forward_ms", "step_ms", "step_ms_20", "step_ms_80", "peak_mb"), "")
Inputs = tuple[Tensor, Tensor, Tensor, Tensor]


def draw(bench: Bench, V: int, D: int, B: int, L: int, active: int | None) -> Inputs:
    """Leaves hidden, weight and bias in float32, and a full mask."""
    generator = torch.Generator(bench.device).manual_seed(0)
    hidden = torch.randn(B, L, D, generator=generator, device=bench.device)
    weight = torch.randn(V, D, generator=generator, device=bench.device) / D**0.5
    highest = torch.cat([(weight[i : i + 8192] @ hidden[0].T).amax(1) for i in range(0, V, 8192)])
    threshold = highest.min() - 1 if active is None else highest.topk(active).values[-1]
    bias = (-threshold).expand(V).clone()
    mask = torch.ones(B, L, dtype=torch.long, device=bench.device)
    return hidden.requires_grad_(), weight.requires_grad_(), bias.requires_grad_(), mask


def forward(impl: str, hidden: Tensor, weight: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
    with torch.autocast(hidden.device.type, torch.bfloat16):
        if impl == "sentence-transformers":
            features = {"token_embeddings": F.linear(hidden, weight, bias), "attention_mask": mask}
            pooling = SpladePooling("max").train(torch.is_grad_enabled())
            return pooling(features)["sentence_embedding"]
        return splade_head(hidden, weight, bias, mask, impl=impl)


def step(impl: str, inputs: Inputs) -> tuple[Tensor, ...]:
    """Result and gradients."""
    out = forward(impl, *inputs)
    return out, *torch.autograd.grad(out, inputs[:3], torch.ones_like(out))


def forward_only(impl: str, inputs: Inputs) -> Callable[[], Tensor]:
    def call() -> Tensor:
        with torch.no_grad():
            return forward(impl, *inputs)

    return call


def check(inputs: Inputs) -> None:
    """Results agree up to the peer's bf16 logits; the gradients are checked by `pytest -m gpu`."""
    one, other = (forward_only(impl, inputs)() for impl in ("triton", "sentence-transformers"))
    error = ((one.float() - other.float()).norm() / other.float().norm()).item()
    if not error < 0.1:
        raise SystemExit(f"triton and sentence-transformers differ by {error:.3f} of the norm")


def time_heads(bench: Bench, cases: list[tuple[int, int, int, int, int | None]]) -> None:
    """Time and peak memory of each implementation, and of the bare product of all tokens."""
    for V, D, B, L, active in cases:
        shape = {"V": V, "D": D, "B": B, "L": L, "active": active or "all"}
        if bench.spent(f"head {shape}"):
            return
        inputs = draw(bench, V, D, B, L, active)
        check(inputs)
        tokens, weight = inputs[0].detach().flatten(0, 1).bfloat16(), inputs[1].detach().bfloat16()
        product = bench.times_ms(partial(torch.matmul, tokens, weight.T))[0]
        bench.append({**shape, "impl": "matrix product", **EMPTY, "forward_ms": product})
        del tokens, weight
        for impl in IMPLEMENTATIONS:
            forward_ms = bench.times_ms(forward_only(impl, inputs))[0]
            call = partial(step, impl, inputs)
            values = (forward_ms, *bench.times_ms(call), bench.peak_mb(call))
            bench.append({**shape, "impl": impl, **dict(zip(EMPTY, values, strict=True))})
        for kernel in (kernels.forward_kernel, kernels.grad_hidden_kernel, kernels.grad_weight_kernel):
            print(f"  {kernel.base_fn.__name__}: {getattr(kernel, 'best_config', 'one config')}")


def find_batches(bench: Bench) -> None:
    """The largest B whose forward and backward fit in the memory of the device."""
    for V, D, L in [(40, 16, 10)] if bench.smoke else BATCH_SHAPES:
        for impl in ("sentence-transformers", "triton"):
            if bench.spent(f"largest batch {V} {impl}"):
                return
            _, weight, bias, _ = draw(bench, V, D, 1, L, 5 if bench.smoke else 1_700)

            def fits_at(
                B: int, impl: str = impl, weight: Tensor = weight, bias: Tensor = bias, L: int = L
            ) -> bool:
                def call() -> None:
                    hidden = torch.randn(B, L, weight.shape[1], device=bench.device, requires_grad=True)
                    mask = torch.ones(B, L, dtype=torch.long, device=bench.device)
                    step(impl, (hidden, weight, bias, mask))

                return fits(call)

            found = largest(fits_at, 4, cap=8 if bench.smoke else 1 << 17)
            shape = {"V": V, "D": D, "B": found, "L": L, "active": "1700 at B 1"}
            bench.append({**shape, "impl": f"{impl}, largest batch", **EMPTY})


def main() -> None:
    bench = Bench("splade_head_gpu", __doc__)
    cases = SMOKE_CASES if bench.smoke else CASES
    time_heads(bench, cases[:4])
    find_batches(bench)
    time_heads(bench, cases[4:])


if __name__ == "__main__":
    main()

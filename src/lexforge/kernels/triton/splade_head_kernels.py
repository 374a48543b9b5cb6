"""The kernels of the SPLADE head: running maxima forward, gather and scatter of the active pairs backward.

Derivation, in the symbols of the code. For row b, token t and term v, where the tokens of a row are those
that its mask keeps:

    logit[b,t,v]    = hidden[b,t,:] . weight[v,:] + bias[v]
    activation[b,v] = max over t of f(logit[b,t,v]),      f = log1p(relu(.)) or log1p(log1p(relu(.)))

Forward. f never decreases and bias[v] is constant over t, so both leave the maximum:

    best[b,v]       = max over t of hidden[b,t,:] . weight[v,:]
    winner[b,v]     = the first position t that reaches it
    activation[b,v] = f(best[b,v] + bias[v])

A program owns BLOCK_V terms of one row and walks the row's tokens, BLOCK_T at a time. The tile of products
stays in the accumulators (fp32); its maximum along the tokens, and the first position that reaches it, update
`best` and `winner`: BLOCK_V numbers each, in registers. No logit is written. Terms run along the rows of the
tile, so that the maximum over tokens is mostly taken inside a thread. Programs of equal terms stand side by
side: a weight tile comes from memory once for all rows. Tokens and terms out of range repeat the last valid
one, which changes neither the maximum nor its first position; so no logit is masked, and what padding holds
(inf, NaN) is never read. A NaN of a kept token stays NaN. log1p runs through PyTorch, in place on [B, V]:
accurate near 0, unlike log(1 + x).

Backward. Only the winner carries gradient. With a = activation and s = relu(best + bias):

    df/ds  = 1 / (1+s)         = exp(-a)          for a = log1p(s)
           = 1 / ((1+u)(1+s))  = exp(-a - u)      for a = log1p(u), u = log1p(s) = exp(a) - 1
    g[b,v] = grad[b,v] * df/ds, and 0 where a = 0
    grad_bias[v]       = sum over b of g[b,v]
    grad_weight[v,:]   = sum over b of g[b,v] * hidden[b,winner[b,v],:]                         (gather)
    grad_hidden[b,t,:] = sum over v of [winner[b,v] = t] * g[b,v] * weight[v,:]                 (scatter)

grad_weight passes over every block of pairs in which none is active. The scatter is turned into a product, so
it needs no atomic operation: the active terms of a row are listed first, and for BLOCK_P of them at a time
`select[t,p] = g[p] if winner[p] = t else 0`, built in registers, meets the gathered rows weight[p,:] on the
tensor cores. Every sum has a fixed order: for given tile sizes the result is equal bit for bit from run to
run.

Counts. Forward: 2*T*V*D operations (T kept tokens, each row's rounded up to BLOCK_T). Backward, with A active
pairs: 2*A*D for grad_weight, 2*A*L*D for grad_hidden, which is the forward's count again when all pairs are
active. Memory: per pair (b,v) 4 bytes for the activation, 2 for `winner` (4 where L > 32,768), and 4 for the
list of active terms during the backward. Nothing of size B*L*V exists.
Precision: products of fp16 and bf16 accumulate in fp32; `select` is rounded to the dtype of weight, as the
plain path rounds its gradient of the logits. fp32 multiplies in full ("ieee") or, where PyTorch is told so,
as tf32.
"""

# mypy: allow-untyped-defs
# (a kernel's arguments are pointers and numbers, which Triton types at launch)

from __future__ import annotations

from typing import Any

try:
    import triton
    import triton.language as tl
except ImportError as error:
    raise ImportError(
        f"the Triton SPLADE head needs triton: pip install 'lexforge[triton]' ({error})"
    ) from None

INTERPRETING: bool = triton.knobs.runtime.interpret  # read once, as `triton.jit` reads it when it decorates
_WIDEN = tl.constexpr(INTERPRETING)


def _config(warps: int, stages: int, **blocks: int) -> Any:
    sizes = {f"BLOCK_{axis}": size for axis, size in blocks.items()}
    return triton.Config(sizes, num_warps=warps, num_stages=stages)


if INTERPRETING:  # one config each, so nothing is timed; small tiles, so that small tests cross their borders
    FORWARD_CONFIGS = [_config(4, 1, V=16, T=16, D=16)]
    GRAD_HIDDEN_CONFIGS = [_config(4, 1, T=16, P=16, D=16)]
    GRAD_WEIGHT_CONFIGS = [_config(4, 1, B=2, V=16, D=16)]
    ACTIVE_BLOCK = BIAS_BLOCK = 16
else:  # a config that exceeds the shared memory of the chip drops out of the timing
    FORWARD_CONFIGS = [
        _config(8, 3, V=128, T=256, D=64),
        _config(8, 3, V=256, T=128, D=64),
        _config(8, 3, V=128, T=128, D=64),
        _config(4, 3, V=128, T=128, D=64),
        _config(4, 4, V=128, T=64, D=64),
        _config(8, 3, V=256, T=64, D=64),
        _config(4, 4, V=128, T=32, D=64),
        _config(4, 4, V=128, T=16, D=64),
        _config(8, 3, V=128, T=64, D=32),  # D = 32: for fp32
        _config(4, 2, V=64, T=64, D=32),
        _config(4, 2, V=64, T=16, D=32),
    ]
    GRAD_HIDDEN_CONFIGS = [
        _config(8, 3, T=256, P=32, D=128),
        _config(8, 3, T=128, P=64, D=128),
        _config(4, 3, T=64, P=64, D=128),
        _config(4, 3, T=64, P=64, D=64),
        _config(4, 3, T=16, P=64, D=128),
        _config(4, 2, T=64, P=32, D=32),  # D = 32: for fp32
        _config(4, 2, T=16, P=32, D=32),
    ]
    GRAD_WEIGHT_CONFIGS = [
        _config(4, 1, B=4, V=16, D=128),
        _config(4, 1, B=4, V=8, D=256),
        _config(4, 1, B=8, V=8, D=128),
    ]
    ACTIVE_BLOCK, BIAS_BLOCK = 2048, 128


def fitting_configs(configs: list[Any], arguments: dict[str, Any], **constants: Any) -> list[Any]:
    """The configs worth timing: the dtype's own, and token tiles no longer than a row nor much shorter.

    `length_bucket`, L rounded up to a power of two, is an argument of the kernels for this and the key alone.
    """
    arguments = {**arguments, **constants}
    for_fp32 = arguments["weight_ptr"].element_size() == 4
    configs = [config for config in configs if INTERPRETING or (config.kwargs["BLOCK_D"] == 32) == for_fp32]
    shortest = min(config.kwargs["BLOCK_T"] for config in configs)
    longest = max(arguments["length_bucket"], shortest)
    configs = [config for config in configs if config.kwargs["BLOCK_T"] <= longest]
    longest = max(config.kwargs["BLOCK_T"] for config in configs)
    return [config for config in configs if config.kwargs["BLOCK_T"] >= longest // 4]


@triton.jit
def _nan_max(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _dot(a, b, total, PRECISION: tl.constexpr):
    if _WIDEN:  # the interpreter multiplies the bits of bf16 as integers; in fp32 these products are exact
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, total, input_precision=PRECISION)


@triton.jit
def _logit_gradient(grad_ptr, activation, offsets, DOUBLE: tl.constexpr):
    """`g` at the given pairs: the gradient of the winning logit; 0 where the activation is 0."""
    live = activation != 0.0
    grad = tl.load(grad_ptr + offsets, mask=live, other=0.0).to(tl.float32)
    exponent = activation
    if DOUBLE:
        exponent += tl.exp(activation) - 1.0
    return tl.where(live, grad * tl.exp(-exponent), 0.0)


@triton.autotune(
    FORWARD_CONFIGS,
    key=["V", "D", "length_bucket", "KEEP_WINNER"],
    prune_configs_by={"early_config_prune": fitting_configs},
)
@triton.heuristics({"EVEN_D": lambda arguments: arguments["D"] % arguments["BLOCK_D"] == 0})
@triton.jit
def forward_kernel(
    hidden_ptr, weight_ptr, bias_ptr, positions_ptr, lengths_ptr, score_ptr, winner_ptr,
    B, L, V, D, stride_hidden_b, stride_hidden_l, stride_weight, length_bucket,
    HAS_BIAS: tl.constexpr, KEEP_WINNER: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_V: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr, EVEN_D: tl.constexpr,
):  # fmt: skip
    """relu(best + bias) and winner of BLOCK_V terms in one row; grid: (tiles of V) * B, the row fastest."""
    row = (tl.program_id(0) % B).to(tl.int64)
    terms = (tl.program_id(0) // B).to(tl.int64) * BLOCK_V + tl.arange(0, BLOCK_V)
    features = tl.arange(0, BLOCK_D)
    weight_tile = weight_ptr + tl.minimum(terms, V - 1)[:, None] * stride_weight + features[None, :]
    length = tl.load(lengths_ptr + row)
    positions_ptr += row * L
    hidden_ptr += row * stride_hidden_b

    best = tl.full([BLOCK_V], float("-inf"), tl.float32)
    winner = tl.zeros([BLOCK_V], tl.int32) + tl.load(positions_ptr, mask=length > 0, other=0)
    for start in range(0, length, BLOCK_T):
        tokens = tl.minimum(start + tl.arange(0, BLOCK_T), length - 1)
        position = tl.load(positions_ptr + tokens)
        hidden_tile = hidden_ptr + position.to(tl.int64)[None, :] * stride_hidden_l + features[:, None]
        product = tl.zeros([BLOCK_V, BLOCK_T], tl.float32)
        for d in range(0, D, BLOCK_D):
            if EVEN_D:
                weight = tl.load(weight_tile + d)
                hidden = tl.load(hidden_tile + d)
            else:
                inside = d + features < D
                weight = tl.load(weight_tile + d, mask=inside[None, :], other=0.0)
                hidden = tl.load(hidden_tile + d, mask=inside[:, None], other=0.0)
            product = _dot(weight, hidden, product, PRECISION)
        tile_best = tl.reduce(product, 1, _nan_max)
        if KEEP_WINNER:
            first = tl.min(tl.where(product == tile_best[:, None], position[None, :], L), 1)
            winner = tl.where(tile_best > best, first, winner)
        best = _nan_max(best, tile_best)

    inside = terms < V
    if HAS_BIAS:  # none is added to the -inf of a row with no token, which the relu turns into 0
        has_token = terms < tl.where(length > 0, V, 0)
        best += tl.load(bias_ptr + terms, mask=has_token, other=0.0).to(tl.float32)
    score = tl.where(best <= 0.0, 0.0, best)  # this relu keeps NaN
    tl.store(score_ptr + row * V + terms, score, mask=inside)
    if KEEP_WINNER:
        tl.store(winner_ptr + row * V + terms, winner, mask=inside)


@triton.jit
def active_terms_kernel(activation_ptr, terms_ptr, count_ptr, V, BLOCK: tl.constexpr):
    """The terms of a row whose activation is not 0, in order, and how many they are; grid: B."""
    row = tl.program_id(0).to(tl.int64)
    count = 0
    for start in range(0, V, BLOCK):
        terms = start + tl.arange(0, BLOCK)
        live = tl.load(activation_ptr + row * V + terms, mask=terms < V, other=0.0) != 0.0
        slots = count + tl.cumsum(live.to(tl.int32), 0) - 1
        tl.store(terms_ptr + row * V + slots, terms, mask=live)
        count += tl.sum(live.to(tl.int32), 0)
    tl.store(count_ptr + row, count)


@triton.autotune(
    GRAD_HIDDEN_CONFIGS,
    key=["V", "D", "length_bucket"],
    prune_configs_by={"early_config_prune": fitting_configs},
)
@triton.heuristics({"EVEN_D": lambda arguments: arguments["D"] % arguments["BLOCK_D"] == 0})
@triton.jit
def grad_hidden_kernel(
    grad_ptr, activation_ptr, winner_ptr, terms_ptr, count_ptr, weight_ptr, positions_ptr, lengths_ptr,
    grad_hidden_ptr, L, V, D, stride_weight, length_bucket,
    DOUBLE: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_D: tl.constexpr, EVEN_D: tl.constexpr,
):  # fmt: skip
    """grad_hidden of BLOCK_T kept tokens of a row and BLOCK_D features; grid: B * tiles of L * tiles of D."""
    tiles_of_d = tl.cdiv(D, BLOCK_D)
    tiles = tl.cdiv(L, BLOCK_T) * tiles_of_d
    row = (tl.program_id(0) // tiles).to(tl.int64)
    first = tl.program_id(0) % tiles // tiles_of_d * BLOCK_T
    length = tl.load(lengths_ptr + row)
    if first >= length:
        return
    tokens = first + tl.arange(0, BLOCK_T)
    features = tl.program_id(0) % tiles_of_d * BLOCK_D + tl.arange(0, BLOCK_D)
    count = tl.load(count_ptr + row)
    position = tl.load(positions_ptr + row * L + tokens, mask=tokens < length, other=-1)

    total = tl.zeros([BLOCK_T, BLOCK_D], tl.float32)
    for start in range(0, count, BLOCK_P):
        pairs = start + tl.arange(0, BLOCK_P)
        terms = tl.load(terms_ptr + row * V + pairs, mask=pairs < count, other=0).to(tl.int64)
        activation = tl.load(activation_ptr + row * V + terms, mask=pairs < count, other=0.0)
        g = _logit_gradient(grad_ptr, activation, row * V + terms, DOUBLE)
        winner = tl.load(winner_ptr + row * V + terms).to(tl.int32)  # beyond `count`: any, with g = 0
        chosen = position[:, None] == winner[None, :]
        weight_tile = weight_ptr + terms[:, None] * stride_weight + features[None, :]
        if EVEN_D:
            weight = tl.load(weight_tile, mask=(pairs < count)[:, None], other=0.0)
        else:
            weight = tl.load(weight_tile, mask=(pairs < count)[:, None] & (features < D)[None, :], other=0.0)
        select = tl.where(chosen, g[None, :], 0.0).to(weight.dtype)
        total = _dot(select, weight, total, PRECISION)

    out = grad_hidden_ptr + (row * L + position)[:, None] * D + features[None, :]
    tl.store(out, total, mask=(tokens < length)[:, None] & (features < D)[None, :])


@triton.autotune(GRAD_WEIGHT_CONFIGS, key=["V", "D"])
@triton.jit
def grad_weight_kernel(
    grad_ptr, activation_ptr, winner_ptr, hidden_ptr, grad_weight_ptr,
    B, V, D, stride_hidden_b, stride_hidden_l,
    DOUBLE: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """grad_weight of BLOCK_V terms and BLOCK_D features; grid: tiles of V * tiles of D."""
    tiles_of_d = tl.cdiv(D, BLOCK_D)
    terms = (tl.program_id(0) // tiles_of_d).to(tl.int64) * BLOCK_V + tl.arange(0, BLOCK_V)
    features = tl.program_id(0) % tiles_of_d * BLOCK_D + tl.arange(0, BLOCK_D)
    total = tl.zeros([BLOCK_V, BLOCK_D], tl.float32)
    for start in range(0, B, BLOCK_B):
        rows = (start + tl.arange(0, BLOCK_B)).to(tl.int64)
        inside = (rows < B)[:, None] & (terms < V)[None, :]
        block = tl.load(activation_ptr + rows[:, None] * V + terms[None, :], mask=inside, other=0.0)
        if tl.max((block != 0.0).to(tl.int32)) > 0:
            for step in tl.static_range(
                BLOCK_B
            ):  # row by row, unrolled: the loads of several rows are in flight
                row = tl.cast(start + step, tl.int64)
                pairs = row * V + terms
                activation = tl.load(activation_ptr + pairs, mask=terms < tl.where(row < B, V, 0), other=0.0)
                live = activation != 0.0
                g = _logit_gradient(grad_ptr, activation, pairs, DOUBLE)
                position = tl.load(winner_ptr + pairs, mask=live, other=0).to(tl.int64)
                token = hidden_ptr + row * stride_hidden_b + position * stride_hidden_l
                wanted = live[:, None] & (features < D)[None, :]
                hidden = tl.load(token[:, None] + features[None, :], mask=wanted, other=0.0)
                total += g[:, None] * hidden.to(tl.float32)
    out = grad_weight_ptr + terms[:, None] * D + features[None, :]
    tl.store(out, total, mask=(terms < V)[:, None] & (features < D)[None, :])


@triton.jit
def grad_bias_kernel(
    grad_ptr, activation_ptr, grad_bias_ptr, B, V, DOUBLE: tl.constexpr, BLOCK: tl.constexpr
):
    """grad_bias of BLOCK terms; grid: tiles of V."""
    terms = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for row in range(0, B):
        pairs = tl.cast(row, tl.int64) * V + terms
        activation = tl.load(activation_ptr + pairs, mask=terms < V, other=0.0)
        total += _logit_gradient(grad_ptr, activation, pairs, DOUBLE)
    tl.store(grad_bias_ptr + terms, total, mask=terms < V)

"""The kernels of the SPLADE head: running maxima forward, gather and scatter of the active pairs backward.

Derivation, in the symbols of the code. For row b, token t and term v, where the tokens of a row are those
that its mask keeps:

    logit[b,t,v]    = hidden[b,t,:] . weight[v,:] + bias[v]
    activation[b,v] = max over t of f(logit[b,t,v]),      f = log1p(relu(.)) or log1p(log1p(relu(.)))

Forward. f never decreases and bias[v] is constant over t, so both leave the maximum:

    best[b,v]       = max over t of hidden[b,t,:] . weight[v,:]
    winner[b,v]     = the first position t that reaches it, or -1 where the activation is 0
    activation[b,v] = f(best[b,v] + bias[v])

A program owns BLOCK_V terms of ROWS rows and walks the tokens of these rows, BLOCK_T / ROWS of each at a
time: one long row fills a tile of products, or several short ones share it. Rows are taken in the order of
their lengths, so that those in one tile are about as long. The tile stays in the accumulators (fp32); its
maximum along the tokens of each row, and the first position that reaches it, update `best` and `winner`:
BLOCK_V * ROWS numbers each, in registers. No logit is written. Terms run along the rows of the tile, so
that the maximum over tokens is mostly taken inside a thread. Slots and terms out of range repeat the last
valid one, which changes neither the maximum nor its first position; so no logit is masked, and what padding
holds (inf, NaN) reaches no result. A NaN of a kept token stays NaN. log1p runs through PyTorch, in place on
[B, V]: accurate near 0, unlike log(1 + x).

The first position is the least of (best - product) * 2**100 + position. Where the product is the maximum this
is the position; elsewhere it is larger than any position, unless the products are closer than 2**-84 = 5e-26.
A subtraction and a multiply-add run at twice the rate of a comparison and a selection.

Order of the programs. A group of rows, whose states fit into the L2 cache, passes over all terms before the
next group begins: the states come from memory once, and the weight once for each group. Within a group,
programs of equal terms stand side by side.

Backward. Only the winner carries gradient. With a = activation and s = relu(best + bias):

    df/ds  = 1 / (1+s)         = exp(-a)          for a = log1p(s)
           = 1 / ((1+u)(1+s))  = exp(-a - u)      for a = log1p(u), u = log1p(s) = exp(a) - 1
    g[b,v] = grad[b,v] * df/ds, and 0 where a = 0
    grad_bias[v]       = sum over b of g[b,v]
    grad_weight[v,:]   = sum over b of g[b,v] * hidden[b,winner[b,v],:]                         (gather)
    grad_hidden[b,t,:] = sum over v of [winner[b,v] = t] * g[b,v] * weight[v,:]                 (scatter)

grad_weight walks, for each term, a list of the rows in which the term is active; the kernel that makes the
lists adds up grad_bias on the way. grad_hidden needs no atomic operation either: the active terms of a row
are sorted by the bucket of tokens in which their winner lies (a counting sort), and for BLOCK_P terms of a
bucket at a time `select[t,p] = g[p] if winner[p] = t else 0`, built in registers, meets the gathered rows
weight[p,:] on the tensor cores. Every sum has a fixed order: for given tile sizes the result is equal bit
for bit from run to run.

Counts. Forward: 2*T*V*D operations (T kept tokens, each row's rounded up to BLOCK_T / ROWS). Backward, with
A active pairs: 2*A*D for grad_weight, 2*A*BUCKET*D for grad_hidden. Memory: per pair (b,v) 4 bytes for the
activation, 2 for `winner` (4 where L > 32,768), and 4 for a list of active terms, then 2 for one of rows,
during the backward. Nothing of size B*L*V exists.
Precision: products of fp16 and bf16 accumulate in fp32; `select` is rounded to their dtype, as the plain path
rounds its gradient of the logits, and so is an fp32 weight, in the forward pass by a copy and in the backward
pass row by row as it is read. fp32 is multiplied as tf32 where PyTorch is told so. Else each number is a sum
of two tf32 numbers and three of the four products are taken ("tf32x3"). The tensor cores truncate their sums,
which over 768 features would err 28 times as much as an fp32 product; so they sum over BLOCK_D = 32 features
only, and ordinary additions, which round, do the rest.
"""

# mypy: allow-untyped-defs
# (a kernel's arguments are pointers and numbers, which Triton types at launch)

from __future__ import annotations

from typing import Any

from lexforge.common.extras import missing_extra

try:
    import triton
    import triton.language as tl
except ImportError as error:
    raise missing_extra("the Triton SPLADE head", "triton", error) from None

INTERPRETING: bool = triton.knobs.runtime.interpret  # read once, as `triton.jit` reads it when it decorates
_WIDEN = tl.constexpr(INTERPRETING)
FAR = tl.constexpr(2.0**100)  # two products closer than 2**-84 count as equal when winners are looked for


def _config(warps: int, stages: int, **blocks: int) -> Any:
    sizes = {f"BLOCK_{axis}": size for axis, size in blocks.items()}
    return triton.Config(sizes, num_warps=warps, num_stages=stages)


if INTERPRETING:  # one config each, so nothing is timed; small tiles, so that small tests cross their borders
    FORWARD_CONFIGS = [_config(4, 1, V=16, T=16, D=16)]
    GRAD_HIDDEN_CONFIGS = [_config(4, 1, T=16, P=16, D=16)]
    GRAD_WEIGHT_CONFIGS = [_config(4, 1, B=2, V=16, D=16)]
    BUCKET = LIST_BLOCK = ROWS_BLOCK = 16
    SEGMENTS = (4, 16)
else:  # a config that exceeds the shared memory of the chip drops out of the timing
    FORWARD_CONFIGS = [
        _config(8, 3, V=128, T=256, D=64),
        _config(8, 3, V=256, T=128, D=64),
        _config(8, 3, V=128, T=128, D=64),
        _config(4, 3, V=128, T=128, D=64),
        _config(4, 4, V=128, T=64, D=64),
        _config(8, 3, V=256, T=64, D=64),
        _config(8, 3, V=64, T=128, D=32),  # D = 32: for fp32
        _config(8, 3, V=128, T=64, D=32),
        _config(4, 2, V=64, T=64, D=32),
    ]
    GRAD_HIDDEN_CONFIGS = [
        _config(8, 3, T=64, P=64, D=256),
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
    BUCKET, LIST_BLOCK, ROWS_BLOCK = 64, 2048, 128
    SEGMENTS = (32, 256)  # at 16 slots for each row the maxima of a tile's rows no longer fit in registers
GROUP_BYTES = 16 * 2**20  # hidden states that stay in L2 while all terms pass: 40 MB on A100, 50 on H100


def configs_of_dtype(configs: list[Any], arguments: dict[str, Any], **constants: Any) -> list[Any]:
    """The configs that are meant for the dtype of the products."""
    for_fp32 = {**arguments, **constants}["PRECISION"] != "ieee"
    return [config for config in configs if INTERPRETING or (config.kwargs["BLOCK_D"] == 32) == for_fp32]


def fitting_configs(configs: list[Any], arguments: dict[str, Any], **constants: Any) -> list[Any]:
    """The configs of the dtype whose token tiles are no longer than a row nor much shorter.

    `length_bucket`, L rounded up to a power of two, is an argument of the kernel for this and the key alone.
    """
    configs = configs_of_dtype(configs, arguments, **constants)
    shortest = min(config.kwargs["BLOCK_T"] for config in configs)
    longest = max({**arguments, **constants}["length_bucket"], shortest)
    configs = [config for config in configs if config.kwargs["BLOCK_T"] <= longest]
    longest = max(config.kwargs["BLOCK_T"] for config in configs)
    return [config for config in configs if config.kwargs["BLOCK_T"] >= longest // 4]


def segment_of(L: int) -> int:
    """The slots of a token tile that a row of up to L tokens gets: a power of two that leaves few empty.

    A tile of more slots takes several rows; a longer row takes several tiles.
    """
    segment = SEGMENTS[1]
    while segment > SEGMENTS[0] and -(-L // segment) * segment > 1.25 * L:
        segment //= 2
    return segment


@triton.jit
def _nan_max(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _dot(a, b, total, PRECISION: tl.constexpr):
    if _WIDEN:  # the interpreter multiplies the bits of bf16 as integers; in fp32 these products are exact
        a, b = a.to(tl.float32), b.to(tl.float32)
    if PRECISION == "tf32x3":  # not `total + ...`, which the compiler would turn into the tensor cores' sum
        return tl.fma(tl.dot(a, b, input_precision=PRECISION), 1.0, total)
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
    key=["V", "D", "segment", "KEEP_WINNER"],
    prune_configs_by={"early_config_prune": configs_of_dtype},
)
@triton.heuristics(
    {
        "EVEN_D": lambda arguments: arguments["D"] % arguments["BLOCK_D"] == 0,
        "ROWS": lambda arguments: max(1, arguments["BLOCK_T"] // arguments["segment"]),
    }
)
@triton.jit
def forward_kernel(
    hidden_ptr, weight_ptr, bias_ptr, order_ptr, positions_ptr, lengths_ptr, score_ptr, winner_ptr,
    B, L, V, D, stride_hidden_b, stride_hidden_l, stride_weight, rows_per_group, segment,
    HAS_BIAS: tl.constexpr, KEEP_WINNER: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_V: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr, EVEN_D: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """relu(best + bias) and winner of BLOCK_V terms in ROWS rows; grid: (tiles of V) * (tiles of rows).

    The programs of a group of rows stand side by side: all rows with the first terms, then with the next.
    """
    SEGMENT: tl.constexpr = BLOCK_T // ROWS
    tiles_of_v = tl.cdiv(V, BLOCK_V)
    tiles_of_rows = tl.cdiv(B, ROWS)
    in_group = tl.maximum(rows_per_group // ROWS, 1)
    group = tl.program_id(0) // (in_group * tiles_of_v)
    within = tl.program_id(0) % (in_group * tiles_of_v)
    first_tile = tl.minimum(group.to(tl.int64) * in_group, tiles_of_rows).to(tl.int32)
    in_group = tl.minimum(in_group, tiles_of_rows - first_tile)
    first_place = (first_tile + within % in_group) * ROWS
    places = first_place + tl.arange(0, ROWS)  # [ROWS], in `order`
    terms = (within // in_group * BLOCK_V + tl.arange(0, BLOCK_V)).to(tl.int64)

    features = tl.arange(0, BLOCK_D)
    weight_tile = weight_ptr + tl.minimum(terms, V - 1)[:, None] * stride_weight + features[None, :]
    rows = tl.load(order_ptr + tl.minimum(places, B - 1)).to(tl.int64)
    lengths = tl.load(lengths_ptr + tl.minimum(places, B - 1))
    # the row of each of the BLOCK_T slots, SEGMENT of them for each row
    slot = tl.arange(0, BLOCK_T)
    slot_place = tl.minimum(first_place + slot // SEGMENT, B - 1)
    last = tl.maximum(tl.load(lengths_ptr + slot_place) - 1, 0)
    slot_positions = positions_ptr + slot_place.to(tl.int64) * L
    slot_hidden = hidden_ptr + tl.load(order_ptr + slot_place).to(tl.int64) * stride_hidden_b

    best = tl.full([BLOCK_V, ROWS], float("-inf"), tl.float32)
    winner = tl.full([BLOCK_V, ROWS], float("inf"), tl.float32)  # a position; inf: none found
    for start in range(0, tl.max(lengths), SEGMENT):
        position = tl.load(slot_positions + tl.minimum(start + slot % SEGMENT, last))
        hidden_tile = (slot_hidden + position.to(tl.int64) * stride_hidden_l)[None, :] + features[:, None]
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
        product = tl.reshape(product, [BLOCK_V, ROWS, SEGMENT])
        tile_best = tl.reduce(product, 2, _nan_max)
        if KEEP_WINNER:
            # position where the product is the maximum, and more than any position elsewhere
            position = tl.reshape(position.to(tl.float32), [1, ROWS, SEGMENT])
            key = (tile_best[:, :, None] - product) * FAR + position
            # positive floats are ordered as their bits, and the least of these takes fewer instructions
            first = tl.min(key.to(tl.int32, bitcast=True), 2).to(tl.float32, bitcast=True)
            winner = tl.where(tile_best > best, first, winner)
        best = _nan_max(best, tile_best)

    if HAS_BIAS:
        best += tl.load(bias_ptr + terms, mask=terms < V, other=0.0).to(tl.float32)[:, None]
    score = tl.where((best <= 0.0) | (lengths == 0)[None, :], 0.0, best)  # this relu keeps NaN
    pairs = rows[None, :] * V + terms[:, None]
    inside = (places < B)[None, :] & (terms < V)[:, None]
    tl.store(score_ptr + pairs, score, mask=inside)
    if KEEP_WINNER:
        # a maximum of NaN or inf has no first position here: the first kept one stands for it
        first = tl.load(positions_ptr + places.to(tl.int64) * L, mask=lengths > 0, other=0)
        winner = tl.where(winner < L, winner, first[None, :].to(tl.float32)).to(tl.int32)
        tl.store(winner_ptr + pairs, tl.where(score == 0.0, -1, winner), mask=inside)


@triton.jit
def terms_by_token_kernel(
    winner_ptr, cells_ptr, terms_ptr, V, buckets,
    PLACE: tl.constexpr, BUCKET: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A counting sort of the active terms of each row by the bucket of tokens that holds their winner.

    Runs twice; grid: B * blocks of terms. First the terms of each block are counted into `cells`
    [B, buckets, blocks]. Then, with PLACE, `cells` holds the running sums of each row, and a term is written
    to its place in `terms` [B, V]: the terms of the first bucket in order, then those of the second.
    """
    blocks = tl.cdiv(V, BLOCK)
    row = (tl.program_id(0) // blocks).to(tl.int64)
    block = tl.program_id(0) % blocks
    terms = block * BLOCK + tl.arange(0, BLOCK)
    winner = tl.load(winner_ptr + row * V + terms, mask=terms < V, other=-1).to(tl.int32)
    cell_ptr = cells_ptr + row * buckets * blocks + block
    for bucket in range(0, buckets):
        mine = ((winner >= bucket * BUCKET) & (winner < (bucket + 1) * BUCKET)).to(tl.int32)
        if PLACE:
            # those of this row before: of earlier buckets, and of earlier blocks of this one
            before = tl.load(cell_ptr - 1, mask=bucket + block > 0, other=0)
            tl.store(terms_ptr + row * V + before + tl.cumsum(mine, 0) - 1, terms, mask=mine != 0)
        else:
            tl.store(cell_ptr, tl.sum(mine, 0))
        cell_ptr += blocks


@triton.autotune(
    GRAD_HIDDEN_CONFIGS,
    key=["V", "D", "length_bucket", "PRECISION"],
    prune_configs_by={"early_config_prune": fitting_configs},
)
@triton.heuristics({"EVEN_D": lambda arguments: arguments["D"] % arguments["BLOCK_D"] == 0})
@triton.jit
def grad_hidden_kernel(
    grad_ptr, activation_ptr, winner_ptr, terms_ptr, ends_ptr, weight_ptr, grad_hidden_ptr,
    L, V, D, stride_weight, blocks, length_bucket,
    DTYPE: tl.constexpr, DOUBLE: tl.constexpr, PRECISION: tl.constexpr, BUCKET: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_D: tl.constexpr, EVEN_D: tl.constexpr,
):  # fmt: skip
    """grad_hidden of BLOCK_T positions of a row and BLOCK_D features; grid: B * tiles of L * tiles of D.

    Products run in DTYPE. `ends` [B, buckets, blocks] are the sums by which `terms_by_token_kernel` placed.
    """
    tiles_of_d = tl.cdiv(D, BLOCK_D)
    tiles = tl.cdiv(L, BLOCK_T) * tiles_of_d
    row = (tl.program_id(0) // tiles).to(tl.int64)
    first = tl.program_id(0) % tiles // tiles_of_d * BLOCK_T
    position = first + tl.arange(0, BLOCK_T)
    features = tl.program_id(0) % tiles_of_d * BLOCK_D + tl.arange(0, BLOCK_D)
    buckets = tl.cdiv(L, BUCKET)
    ends_ptr += row * buckets * blocks - 1  # of the last block of the bucket before
    following = tl.minimum(tl.cdiv(first + BLOCK_T, BUCKET), buckets)
    begin = tl.load(ends_ptr + (first // BUCKET).to(tl.int64) * blocks, mask=first >= BUCKET, other=0)
    end = tl.load(ends_ptr + following.to(tl.int64) * blocks)

    total = tl.zeros([BLOCK_T, BLOCK_D], tl.float32)
    for start in range(begin, end, BLOCK_P):
        pairs = start + tl.arange(0, BLOCK_P)
        terms = tl.load(terms_ptr + row * V + pairs, mask=pairs < end, other=0).to(tl.int64)
        activation = tl.load(activation_ptr + row * V + terms, mask=pairs < end, other=0.0)
        g = _logit_gradient(grad_ptr, activation, row * V + terms, DOUBLE)
        winner = tl.load(winner_ptr + row * V + terms).to(tl.int32)  # beyond `end`: any, with g = 0
        chosen = position[:, None] == winner[None, :]
        weight_tile = weight_ptr + terms[:, None] * stride_weight + features[None, :]
        if EVEN_D:
            weight = tl.load(weight_tile, mask=(pairs < end)[:, None], other=0.0)
        else:
            weight = tl.load(weight_tile, mask=(pairs < end)[:, None] & (features < D)[None, :], other=0.0)
        select = tl.where(chosen, g[None, :], 0.0).to(DTYPE)
        total = _dot(select, weight.to(DTYPE), total, PRECISION)

    out = grad_hidden_ptr + (row * L + position)[:, None] * D + features[None, :]
    tl.store(out, total, mask=(position < L)[:, None] & (features < D)[None, :])


@triton.jit
def rows_by_term_kernel(
    grad_ptr, activation_ptr, rows_ptr, count_ptr, grad_bias_ptr, B, V,
    DOUBLE: tl.constexpr, LIST: tl.constexpr, BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The rows in which each of BLOCK terms is active, in order, how many, and grad_bias; grid: tiles of V.

    `rows` [B, V] holds the first row of every term, then the second.
    """
    terms = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    count = tl.zeros([BLOCK], tl.int64)
    for row in range(0, B):
        pairs = tl.cast(row, tl.int64) * V + terms
        activation = tl.load(activation_ptr + pairs, mask=terms < V, other=0.0)
        if BIAS:
            total += _logit_gradient(grad_ptr, activation, pairs, DOUBLE)
        if LIST:
            live = activation != 0.0
            tl.store(rows_ptr + count * V + terms, row, mask=live)
            count += live.to(tl.int64)
    if BIAS:
        tl.store(grad_bias_ptr + terms, total, mask=terms < V)
    if LIST:
        tl.store(count_ptr + terms, count, mask=terms < V)


@triton.autotune(GRAD_WEIGHT_CONFIGS, key=["V", "D"])
@triton.jit
def grad_weight_kernel(
    grad_ptr, activation_ptr, winner_ptr, rows_ptr, count_ptr, hidden_ptr, grad_weight_ptr,
    V, D, stride_hidden_b, stride_hidden_l,
    DOUBLE: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """grad_weight of BLOCK_V terms and BLOCK_D features; grid: tiles of V * tiles of D."""
    tiles_of_d = tl.cdiv(D, BLOCK_D)
    terms = (tl.program_id(0) // tiles_of_d).to(tl.int64) * BLOCK_V + tl.arange(0, BLOCK_V)
    features = tl.program_id(0) % tiles_of_d * BLOCK_D + tl.arange(0, BLOCK_D)
    count = tl.load(count_ptr + terms, mask=terms < V, other=0)
    total = tl.zeros([BLOCK_V, BLOCK_D], tl.float32)
    for start in range(0, tl.max(count), BLOCK_B):
        for step in tl.static_range(BLOCK_B):  # unrolled: the loads of several rows are in flight
            live = start + step < count
            listed = rows_ptr + tl.cast(start + step, tl.int64) * V + terms
            row = tl.load(listed, mask=live, other=0).to(tl.int64)
            pairs = row * V + terms
            activation = tl.load(activation_ptr + pairs, mask=live, other=0.0)
            g = _logit_gradient(grad_ptr, activation, pairs, DOUBLE)
            position = tl.load(winner_ptr + pairs, mask=live, other=0).to(tl.int64)
            token = hidden_ptr + row * stride_hidden_b + position * stride_hidden_l
            wanted = live[:, None] & (features < D)[None, :]
            hidden = tl.load(token[:, None] + features[None, :], mask=wanted, other=0.0)
            total += g[:, None] * hidden.to(tl.float32)
    out = grad_weight_ptr + terms[:, None] * D + features[None, :]
    tl.store(out, total, mask=(terms < V)[:, None] & (features < D)[None, :])

"""The SPLADE head: the readable reference against a naive loop, the tiled path against the reference."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lexforge.kernels import splade_head
from lexforge.kernels.splade_head import tiled as tiled_head
from lexforge.kernels.splade_head import triton_is_installed
from lexforge.kernels.splade_head.choice import BACKENDS

IMPLEMENTATIONS = ("reference", "tiled")


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of 5 terms and about 6 tokens, sums in blocks of 2: small tensors cross every border."""
    monkeypatch.setattr(tiled_head, "TILE_TERMS", 5)
    monkeypatch.setattr(tiled_head, "TILE_TOKENS", {"cpu": 6, "other": 6})
    monkeypatch.setattr(tiled_head, "ROWS_IN_BLOCK", 2)
    monkeypatch.setattr(tiled_head, "ROWS_AT_ONCE", 7)


def inputs(
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    shift: float = 0.0,
    shape: tuple[int, ...] = (5, 4, 6, 13),
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Random hidden, weight, bias and a mask with holes and one empty row; `shift` moves the density."""
    rows, length, width, terms = shape
    generator = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, dtype=torch.float64, generator=generator).to(dtype).requires_grad_()

    hidden, weight = normal(rows, length, width), normal(terms, width)
    bias = (normal(terms).detach() + shift).requires_grad_()
    mask = (torch.rand(rows, length, generator=generator) < 0.7).long()
    mask[:, 0] = 1
    mask[rows // 2] = 0
    return hidden, weight, bias, mask


def naive(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, mask: Tensor, twice: bool
) -> list[list[float]]:
    """The definition, one Python float at a time."""
    out = []
    for states, keep in zip(hidden.tolist(), mask.tolist(), strict=True):
        row = []
        for term, vector in enumerate(weight.tolist()):
            best = 0.0
            for state, kept in zip(states, keep, strict=True):
                if kept:
                    logit = math.fsum(a * b for a, b in zip(state, vector, strict=True))
                    logit += 0.0 if bias is None else bias[term].item()
                    value = math.log1p(max(logit, 0.0))
                    best = max(best, math.log1p(value) if twice else value)
            row.append(best)
        out.append(row)
    return out


def gradients(impl: str, tensors: list[Tensor], mask: Tensor, upstream: Tensor, twice: bool = False) -> list:
    """The output and the gradient of each tensor that asks for one."""
    hidden, weight, bias = tensors
    out = splade_head(hidden, weight, bias, mask, impl=impl, double_log1p=twice)
    wanted = [t for t in tensors if t.requires_grad]
    return [out.detach(), *torch.autograd.grad((out * upstream).sum(), wanted)]


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.usefixtures("small_tiles")
def test_equals_the_definition(impl: str, with_bias: bool, twice: bool) -> None:
    """Every implementation is the formula of the paper, with holes in the mask and an empty row."""
    hidden, weight, bias, mask = inputs(dtype=torch.float64)
    chosen = bias if with_bias else None
    out = splade_head(hidden, weight, chosen, mask, impl=impl, double_log1p=twice)
    expected = torch.tensor(naive(hidden, weight, chosen, mask, twice), dtype=torch.float64)
    # float64 on sums of six products: a few units in the last place
    torch.testing.assert_close(out, expected, rtol=1e-13, atol=1e-14)
    assert (out[2] == 0).all()


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("shift", [-1.5, 1.5, 30.0])
@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.usefixtures("small_tiles")
def test_gradcheck(impl: str, shift: float, twice: bool) -> None:
    """Finite differences know nothing of arg-max bookkeeping: few, many and all terms active."""
    hidden, weight, bias, mask = inputs(seed=1, dtype=torch.float64, shift=shift, shape=(3, 4, 3, 11))
    density = (splade_head(hidden, weight, bias, mask) > 0)[mask.any(1)].double().mean()
    assert (density < 0.5) == (shift < 0)
    assert torch.autograd.gradcheck(
        lambda h, w, b: splade_head(h, w, b, mask, impl=impl, double_log1p=twice), (hidden, weight, bias)
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("shift", "shape"),
    [
        pytest.param(-20.0, (6, 40, 64, 9000), id="few-active"),
        pytest.param(-8.0, (6, 40, 64, 9000), id="most-active"),
        pytest.param(100.0, (6, 40, 64, 9000), id="all-active"),
        pytest.param(100.0, (4, 12, 96, 30_522), id="thousands-of-terms-for-a-token"),
        pytest.param(100.0, (2000, 1, 64, 50), id="thousands-of-rows-for-a-term"),
    ],
)
def test_error_is_within_twice_the_reference_error(
    shift: float, shape: tuple[int, ...], backend: str, ask_for: Callable[[str], None]
) -> None:
    """Truth is the reference in float64; the fast path may not be less exact than the plain float32 one."""
    ask_for(backend)
    hidden, weight, bias, mask = inputs(seed=2, shift=shift, shape=shape)
    upstream = torch.randn(shape[0], shape[3], generator=torch.Generator().manual_seed(3))
    exact_tensors = [t.detach().double().requires_grad_() for t in (hidden, weight, bias)]
    exact = gradients("reference", exact_tensors, mask, upstream.double())
    plain = gradients("reference", [hidden, weight, bias], mask, upstream)
    tiled = gradients("tiled", [hidden, weight, bias], mask, upstream)
    for name, truth, reference, ours in zip(
        ("out", "hidden", "weight", "bias"), exact, plain, tiled, strict=True
    ):
        allowed = 2 * (reference.double() - truth).abs().max()
        assert (ours.double() - truth).abs().max() <= allowed, name


@pytest.mark.parametrize("wanted", ["hidden", "weight", "bias"])
def test_a_long_sum_keeps_its_small_numbers(wanted: str) -> None:
    """Worked by hand, on any processor: 1 and 65,536 times 2**-25 are 1 + 2**-9, but 1 + 2**-25 rounds to 1.

    The logits are 1, so the slope of log1p is 1/2 and an upstream gradient of 2 makes every weight 1.
    """
    numbers = torch.full((65_537,), 2.0**-25)
    numbers[0] = 1.0
    count = len(numbers)
    if wanted == "hidden":  # one token, the sum runs over the terms
        hidden, weight, upstream = torch.zeros(1, 1, 1), numbers.view(-1, 1), torch.full((1, count), 2.0)
    elif wanted == "weight":  # one term, the sum runs over the rows
        hidden, weight, upstream = numbers.view(-1, 1, 1), torch.zeros(1, 1), torch.full((count, 1), 2.0)
    else:
        hidden, weight, upstream = torch.zeros(count, 1, 1), torch.zeros(1, 1), 2 * numbers.view(-1, 1)
    tensors = {"hidden": hidden, "weight": weight, "bias": torch.ones(len(weight))}
    tensors[wanted].requires_grad_()
    _, grad = gradients("tiled", list(tensors.values()), torch.ones(hidden.shape[:2]), upstream)
    # four levels of blocks of 32 numbers, each addition off by at most 2**-24 of the sum
    assert abs(float(grad) - (1 + 2**-9)) <= 4 * 32 * 2**-24


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.sampled_from([0, 1, 2, 3, 4, 9, 30]), max_size=12),
    block=st.integers(2, 5),
    at_once=st.integers(1, 40),
    seed=st.integers(0, 99),
)
def test_sums_in_blocks_equal_plain_sums(counts: list[int], block: int, at_once: int, seed: int) -> None:
    """Whatever the lengths of the bags, empty ones included, each row is added once and to its own bag."""
    generator = torch.Generator().manual_seed(seed)
    bag = torch.repeat_interleave(torch.tensor(counts, dtype=torch.int64))
    table = torch.randn(7, 3, dtype=torch.float64, generator=generator)
    index = torch.randint(7, bag.shape, generator=generator)
    scale = torch.randn(len(bag), dtype=torch.float64, generator=generator)
    expected = torch.zeros(len(counts), 3, dtype=torch.float64)
    for row, owner, weight in zip(index.tolist(), bag.tolist(), scale.tolist(), strict=True):
        expected[owner] += weight * table[row]
    with mock.patch.multiple(tiled_head, ROWS_IN_BLOCK=block, ROWS_AT_ONCE=at_once):
        received = tiled_head.sum_of_rows(table, index, bag, scale, len(counts), table.dtype)
    # float64, sums of at most 30 numbers below 20
    torch.testing.assert_close(received, expected, rtol=0, atol=1e-12)


def test_the_sums_of_blocks_take_little_memory() -> None:
    """Where every bag is longer than a block, all sums of blocks at once would outgrow the result."""
    table, bag = torch.ones(100, 16), torch.arange(200).repeat_interleave(64)
    with _Sizes() as seen, mock.patch.multiple(tiled_head, ROWS_IN_BLOCK=2, ROWS_AT_ONCE=128):
        total = tiled_head.sum_of_rows(table, bag % 100, bag, torch.ones(len(bag)), 200, table.dtype)
    assert (total == 64).all()
    assert max(seen.sizes) == len(bag)  # the sums of all blocks would be 16 / 2 times as many numbers


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("off", [-torch.inf, -1e4])
@pytest.mark.usefixtures("small_tiles")
def test_a_bias_switches_terms_off(impl: str, off: float) -> None:
    """A restricted output vocabulary lives in the bias: no NaN, no gradient for the term."""
    hidden, weight, bias, mask = inputs(shift=2.0)
    bias.data[::2] = off
    out, *grads = gradients(impl, [hidden, weight, bias], mask, torch.ones(5, 13))
    assert (out[:, ::2] == 0).all()
    assert (out[:, 1::2] > 0).any()
    assert all(torch.isfinite(grad).all() for grad in grads)
    assert (grads[1][::2] == 0).all()
    assert (grads[2][::2] == 0).all()


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("junk", [torch.nan, torch.inf])
def test_padding_has_no_effect(impl: str, junk: float) -> None:
    """Masking by multiplication turns an infinite padding state into NaN; here padding is never read."""
    hidden, weight, bias, mask = inputs()
    upstream = torch.ones(5, 13)
    clean = gradients(impl, [hidden, weight, bias], mask, upstream)
    dirty_hidden = hidden.detach().masked_fill(mask.unsqueeze(-1) == 0, junk).requires_grad_()
    dirty = gradients(impl, [dirty_hidden, weight, bias], mask, upstream)
    for expected, received in zip(clean, dirty, strict=True):
        torch.testing.assert_close(received, expected, rtol=0, atol=0)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_a_nan_in_a_real_token_shows(impl: str) -> None:
    """A diverged model must show as NaN, not as an empty vector."""
    hidden, weight, bias, mask = inputs()
    hidden.data[0, 0, 0] = torch.nan
    out, *grads = gradients(impl, [hidden, weight, bias], mask, torch.ones(5, 13))
    assert out[0].isnan().all()
    assert torch.isfinite(out[1:]).all()
    assert grads[0][0].isnan().any()


@pytest.mark.usefixtures("small_tiles")
def test_non_contiguous_inputs_and_any_mask_dtype() -> None:
    """Views from a transpose, a slice or an expand, and float or bool masks, are inputs as good as any."""
    hidden, weight, bias, mask = inputs()
    upstream = torch.randn(5, 13, generator=torch.Generator().manual_seed(5))
    expected = gradients("tiled", [hidden, weight, bias], mask, upstream)
    views = [
        hidden.detach().transpose(0, 2).contiguous().transpose(0, 2).requires_grad_(),
        weight.detach().repeat_interleave(2, 0)[::2].requires_grad_(),
        bias.detach().repeat_interleave(3)[::3].requires_grad_(),
    ]
    assert not any(view.is_contiguous() for view in views)
    for view_mask in (mask.float(), mask.bool(), mask.t().contiguous().t()):
        received = gradients("tiled", views, view_mask, upstream.t().contiguous().t())
        for a, b in zip(received, expected, strict=True):
            # another memory layout may take another product kernel: float32 rounding of six products
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("wanted", list(itertools.product([False, True], repeat=3))[1:])
def test_every_subset_of_gradients(wanted: tuple[bool, ...]) -> None:
    """A frozen embedding or backbone changes nothing in the other gradients."""
    *tensors, mask = inputs()
    upstream = torch.ones(5, 13)
    _, *every = gradients("tiled", tensors, mask, upstream)
    frozen = [t.detach().requires_grad_(want) for t, want in zip(tensors, wanted, strict=True)]
    _, *some = gradients("tiled", frozen, mask, upstream)
    expected = [grad for grad, want in zip(every, wanted, strict=True) if want]
    for a, b in zip(some, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


@pytest.mark.usefixtures("small_tiles")
def test_no_gradient_wanted_gives_the_same_values() -> None:
    """Inference skips the winners and must not skip anything else."""
    hidden, weight, bias, mask = inputs()
    trained = splade_head(hidden, weight, bias, mask)
    with torch.no_grad():
        plain = splade_head(hidden, weight, bias, mask)
    assert trained.requires_grad
    assert not plain.requires_grad
    assert torch.equal(trained, plain)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("all_active", [False, True])
def test_a_tie_goes_to_the_first_token(impl: str, all_active: bool) -> None:
    """Repeated tokens tie in earnest; the rule makes runs repeatable, worked by hand: log1p'(2) = 1/3."""
    hidden = torch.tensor([[[9.0], [2.0], [1.0], [2.0]]], requires_grad=True)
    weight = torch.tensor([[1.0], [1.0 if all_active else -1.0], [0.5 if all_active else -2.0]])
    mask = torch.tensor([[0, 1, 1, 1]])
    splade_head(hidden, weight, None, mask, impl=impl)[0, 0].backward()
    torch.testing.assert_close(hidden.grad.flatten(), torch.tensor([0.0, 1 / 3, 0.0, 0.0]))


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("others", [-1.0, 1.0])
def test_a_logit_of_zero_has_no_gradient(impl: str, others: float) -> None:
    """relu has slope 0 at 0 in PyTorch; a term on the edge, alone or among active ones, must not push."""
    hidden = torch.ones(1, 2, 1, requires_grad=True)
    weight = torch.tensor([[0.0], [others], [others]], requires_grad=True)
    out = splade_head(hidden, weight, None, torch.ones(1, 2), impl=impl)
    out[0, 0].backward()
    assert not hidden.grad.any()
    assert not weight.grad.any()


@pytest.mark.usefixtures("small_tiles")
def test_two_runs_are_bitwise_equal() -> None:
    """Sums over tokens and rows have a fixed order on the CPU."""
    *tensors, mask = inputs(shape=(16, 30, 8, 400))
    upstream = torch.randn(16, 400, generator=torch.Generator().manual_seed(6))
    first, second = (gradients("tiled", tensors, mask, upstream) for _ in range(2))
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("shape", [(0, 4, 6, 13), (3, 0, 6, 13), (3, 4, 6, 0)])
@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_empty_inputs_give_zeros_with_a_graph(impl: str, shape: tuple[int, ...]) -> None:
    """The last, short batch of a loader may be anything; a loss on it must still reach the weights."""
    rows, length, width, terms = shape
    tensors = [
        torch.ones(*size, requires_grad=True) for size in ((rows, length, width), (terms, width), (terms,))
    ]
    out, *grads = gradients(impl, tensors, torch.ones(rows, length), torch.ones(rows, terms))
    assert out.shape == (rows, terms)
    assert not out.any()
    for tensor, grad in zip(tensors, grads, strict=True):
        assert grad.shape == tensor.shape
        assert not grad.any()


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_inputs_reduce_in_float32(impl: str, dtype: torch.dtype) -> None:
    """A model loaded in half precision gets float32 activations and gradients in its own dtype."""
    hidden, weight, bias, mask = inputs(dtype=dtype, shift=1.0)
    out, *grads = gradients(impl, [hidden, weight, bias], mask, torch.ones(5, 13))
    exact, *exact_grads = gradients(
        "reference",
        [t.detach().double().requires_grad_() for t in (hidden, weight, bias)],
        mask,
        torch.ones(5, 13, dtype=torch.float64),
    )
    assert out.dtype == torch.float32
    assert [grad.dtype for grad in grads] == [dtype] * 3
    # one rounding of a logit of at most 8 to 8 (bfloat16) or 11 bits
    torch.testing.assert_close(out.double(), exact, rtol=0, atol=8 * torch.finfo(dtype).eps)
    torch.testing.assert_close(grads[2].double(), exact_grads[2], rtol=0.02, atol=0.05)


def test_autocast_takes_products_in_half_and_reduces_in_float32() -> None:
    """Under autocast the tiled path is the reference: same product dtype, float32 out, float32 gradients."""
    *tensors, mask = inputs(shape=(4, 20, 32, 300))
    upstream = torch.randn(4, 300, generator=torch.Generator().manual_seed(7))
    exact = gradients("reference", tensors, mask, upstream)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        reference = gradients("reference", tensors, mask, upstream)
        tiled = gradients("tiled", tensors, mask, upstream)
    for truth, a, b in zip(exact, tiled, reference, strict=True):
        assert a.dtype == torch.float32
        # measured against each other's rounding: the same bfloat16 products, other order of sums
        assert (a - truth).abs().max() <= 2 * (b - truth).abs().max()
    assert (tiled[0] - exact[0]).abs().max() > 1e-4, "the products were not taken in bfloat16"


def test_autocast_rounds_the_products_and_no_gradient() -> None:
    """The sums of the gradients are those of a call with bfloat16 inputs, before that call rounds them to its
    dtype: a rounded gradient of the weight would be off by 2^-9 of itself.
    """
    *tensors, mask = inputs(shape=(4, 20, 32, 300))
    upstream = torch.randn(4, 300, generator=torch.Generator().manual_seed(7))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, *autocast = gradients("tiled", tensors, mask, upstream)
    narrow = [tensor.detach().bfloat16().requires_grad_() for tensor in tensors[:2]]
    _, *direct = gradients("tiled", [*narrow, tensors[2]], mask, upstream)
    for received, rounded in zip(autocast[:2], direct[:2], strict=True):
        assert received.dtype == torch.float32
        assert torch.equal(received.bfloat16(), rounded)
        assert (received != received.bfloat16()).float().mean() > 0.5
    assert torch.equal(autocast[2], direct[2])


def test_autocast_keeps_the_weight_itself_for_the_backward_pass() -> None:
    """A bfloat16 copy for each call is 384 MB for 250,002 terms of 768 numbers, and a step has two calls."""
    hidden, weight, bias, mask = inputs(shape=(4, 20, 32, 300))
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", dtype=torch.bfloat16),
    ):
        splade_head(hidden, weight, bias, mask, impl="tiled")
    assert all(tensor.dtype != torch.bfloat16 for tensor in kept)
    assert [tensor.data_ptr() for tensor in kept if tensor.shape == weight.shape] == [weight.data_ptr()]


class _Sizes(TorchDispatchMode):
    """Records the number of elements of each tensor that an operation (any, or the named one) returns."""

    def __init__(self, operation: str = "") -> None:
        super().__init__()
        self.operation = operation
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func.name().startswith(self.operation):
            tensors = out if isinstance(out, (tuple, list)) else (out,)
            self.sizes += [tensor.numel() for tensor in tensors if isinstance(tensor, Tensor)]
        return out


@pytest.mark.parametrize("shift", [-10.0, 100.0])
def test_the_logits_are_never_built(shift: float) -> None:
    """The point of the kernel: nothing of the size [B, L, V] exists, forward or backward, sparse or dense."""
    hidden, weight, bias, mask = inputs(shift=shift, shape=(32, 64, 8, 20_000))
    with _Sizes() as seen:
        splade_head(hidden, weight, bias, mask, impl="tiled").sum().backward()
    assert max(seen.sizes) <= 32 * 64 * 20_000 / 8
    with _Sizes() as seen:
        splade_head(hidden, weight, bias, mask, impl="reference")
    assert max(seen.sizes) == 32 * 64 * 20_000


@pytest.mark.parametrize(("shift", "all_of_them"), [(-10.0, False), (100.0, True)])
def test_the_measured_density_chooses_where_winners_are_sought(
    shift: float, all_of_them: bool, ask_for: Callable[[str], None]
) -> None:
    """Without screening: few active pairs, only those are searched for their token; nearly all, the tile."""
    ask_for("float32")
    hidden, weight, bias, mask = inputs(shift=shift, shape=(4, 8, 8, 1000))
    with _Sizes("aten::argmax") as searched:
        out = splade_head(hidden, weight, bias, mask, impl="tiled")
    pairs = 3 * 1000 if all_of_them else int((out > 0).sum())
    assert sum(searched.sizes) == pairs > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden": torch.ones(4, 6)}, r"hidden must be float \[B, L, D\], got torch.float32 \(4, 6\)"),
        ({"hidden": torch.ones(5, 4, 6, dtype=torch.long)}, "hidden must be float"),
        ({"weight": torch.ones(13, 7)}, r"weight must be \[V, D\] with D = 6"),
        ({"weight": torch.ones(13, 6).double()}, "share a dtype, got torch.float32 and torch.float64"),
        ({"bias": torch.ones(1)}, r"bias must be float \[V\] with V = 13"),
        ({"bias": torch.ones(13, dtype=torch.long)}, "bias must be float"),
        ({"attention_mask": torch.ones(5, 3)}, r"attention_mask must be \[B, L\] = \(5, 4\), got \(5, 3\)"),
        ({"attention_mask": torch.ones(5, 4, device="meta")}, "one device, got"),
        ({"impl": "fast"}, "impl must be 'auto', 'reference', 'tiled' or 'triton', got 'fast'"),
    ],
)
def test_bad_input_is_named(change: dict[str, object], message: str) -> None:
    """A wrong shape must not broadcast into a plausible result."""
    hidden, weight, bias, mask = inputs()
    arguments = {"hidden": hidden, "weight": weight, "bias": bias, "attention_mask": mask, "impl": "auto"}
    with pytest.raises(ValueError, match=message):
        splade_head(**(arguments | change))


def test_an_explicit_request_never_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks for Triton and has none must learn it; "auto" on the CPU does not even look."""
    monkeypatch.setitem(sys.modules, "lexforge.kernels.splade_head.triton.head", None)
    hidden, weight, bias, mask = inputs()
    with pytest.raises(ImportError):
        splade_head(hidden, weight, bias, mask, impl="triton")
    automatic = splade_head(hidden, weight, bias, mask)
    assert torch.equal(automatic, splade_head(hidden, weight, bias, mask, impl="tiled"))


def test_a_gpu_without_triton_is_told_once(monkeypatch, caplog) -> None:
    """The head is several times slower there, and nobody looks for a missing package in a slow run."""
    monkeypatch.setitem(sys.modules, "triton", None)
    triton_is_installed.cache_clear()
    assert not triton_is_installed()
    assert not triton_is_installed()
    triton_is_installed.cache_clear()
    assert [record.getMessage() for record in caplog.records] == [
        "the SPLADE head takes its slow way on this GPU: Triton is missing (pip install triton)"
    ]

"""Screening by a narrow product: what it hands on must be what float32 alone would have found."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lexforge.kernels import splade_head
from lexforge.kernels.splade_head import screening, tiled
from lexforge.kernels.splade_head.choice import BACKENDS
from lexforge.kernels.splade_head.screening import HeadBatch, screened_maximum
from lexforge.kernels.splade_head.screens import SCREENS, is_exact

chosen = SCREENS["bfloat16"]  # set by `every_screen`


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles and chunks that small tensors cross."""
    monkeypatch.setattr(tiled, "TILE_TERMS", 50)
    monkeypatch.setattr(tiled, "FIRST_TERMS", 20)
    monkeypatch.setattr(screening, "CHECKED_AT_ONCE", 3)


@pytest.fixture(autouse=True, params=list(SCREENS))
def every_screen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test holds for each narrow format."""
    if not is_exact(SCREENS[request.param], 16):
        pytest.skip(f"this processor does not sum products of {request.param} exactly")
    monkeypatch.setattr(f"{__name__}.chosen", SCREENS[request.param])


def inputs(seed: int, bias: float, scale: float = 1.0, terms: int = 130) -> tuple[Tensor, ...]:
    """Hidden `[5, 7, 16]`, weight, bias and a mask with holes and an empty row."""
    generator = torch.Generator().manual_seed(seed)
    hidden = scale * torch.randn(5, 7, 16, generator=generator)
    weight = torch.randn(terms, 16, generator=generator) / 4
    mask = torch.rand(5, 7, generator=generator) < 0.7
    mask[:, 2], mask[3] = True, False
    return hidden, weight, torch.full((terms,), bias * scale), mask


def screen(hidden: Tensor, weight: Tensor, bias: Tensor | None, mask: Tensor, training: bool = True):
    """`screened_maximum` of a batch, None if it refuses a part; a group takes two rows."""
    flat = hidden.reshape(-1, hidden.shape[2])
    groups = tiled.token_groups(mask)
    maximum = torch.full((len(hidden), len(weight)), -torch.inf)
    winner = torch.full(maximum.shape, -1, dtype=torch.int32) if training else None
    parts = tiled.vocabulary_parts(len(weight), len(groups), first=20)
    batch = HeadBatch(flat, groups, weight, bias, maximum, winner)
    refused = screened_maximum(batch, chosen, parts)
    return None if refused else (maximum, winner)


def check(hidden: Tensor, weight: Tensor, bias: Tensor | None, mask: Tensor, seed: int = 0) -> int:
    """Compare with float64, pair by pair; returns the number of active pairs."""
    maximum, winner = screen(hidden, weight, bias, mask)
    exact = torch.einsum("bld,vd->bvl", hidden.double(), weight.double())
    offset = 0.0 if bias is None else bias.double().unsqueeze(1)
    top = (exact + offset).masked_fill(~mask.unsqueeze(1), -torch.inf).amax(2)
    # a sum of 16 float32 products
    tolerance = 2e-6 * float(hidden.norm(dim=2).max() * weight.norm(dim=1).max())
    torch.testing.assert_close(maximum.relu().double(), top.relu(), rtol=0, atol=tolerance)
    clear = top.abs() > tolerance
    assert torch.equal((winner >= 0)[clear], (top > 0)[clear])
    rows, terms = (winner >= 0).nonzero(as_tuple=True)
    token = winner[rows, terms] - rows * mask.shape[1]
    assert mask[rows, token].all()
    reached = (exact + offset)[rows, terms, token]
    torch.testing.assert_close(reached, top[rows, terms], rtol=0, atol=tolerance)
    return len(rows)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), scale=st.sampled_from([1e-6, 1.0, 1e6]), with_bias=st.booleans())
def test_finds_the_maxima_and_winners_of_float32(seed: int, scale: float, with_bias: bool) -> None:
    """Values, active pairs and winning tokens, for any scale; without a bias the states point away."""
    hidden, weight, bias, mask = inputs(seed, -2.6, scale)
    if with_bias:
        active = check(hidden, weight, bias, mask)
    else:
        weight[:, 0], hidden[:, :, 0] = 1.5, -1.6 * scale
        active = check(hidden, weight, None, mask)
    assert active > 0


@pytest.mark.parametrize("sign", [1, -1])
def test_tokens_that_bfloat16_confuses(sign: int) -> None:
    """Three tokens are one in bfloat16: float32 tells who wins."""
    hidden = torch.full((1, 3, 16), 1.0)
    hidden[0, 1] += 2.0**-10
    hidden[0, 2] -= 2.0**-10
    assert (hidden.bfloat16() == 1).all()
    weight = torch.zeros(40, 16)
    weight[7] = sign * 0.25
    bias = torch.full((40,), -1.0)
    bias[7] = -3.9 * sign + (sign < 0) * 0.2
    best = 1 if sign > 0 else 2
    maximum, winner = screen(hidden, weight, bias, torch.ones(1, 3, dtype=torch.bool))
    assert winner[0].tolist() == [-1] * 7 + [best] + [-1] * 32
    expected = sign * 0.25 * float(hidden[0, best].double().sum()) + float(bias[7])
    assert maximum[0, 7] == pytest.approx(expected, abs=1e-6)


def test_a_product_that_rounding_makes_much_smaller() -> None:
    """Every factor rounds down by nearly half a unit, and bfloat16 alone would call the pair inactive."""
    almost_half = 1 + 0.99 * 2.0**-8
    hidden, weight = torch.full((1, 1, 16), almost_half), torch.zeros(20, 16)
    weight[3] = almost_half
    product = 16 * almost_half**2
    bias = torch.full((20,), -product + 1e-3)
    maximum, winner = screen(hidden, weight, bias, torch.ones(1, 1, dtype=torch.bool))
    assert winner[0].tolist() == [-1] * 3 + [0] + [-1] * 16
    assert maximum[0, 3] == pytest.approx(1e-3, abs=1e-5)


def test_a_winner_that_rounding_puts_behind() -> None:
    """The winner's factors and result all round down, the other token's up, nearly as far as they can."""
    unit = 2.0**-8
    down, up = 1 + 0.999 * unit, 1 + 1.001 * unit
    hidden, weight = torch.zeros(1, 2, 18), torch.zeros(20, 18)
    weight[3] = torch.tensor([down] * 8 + [up] * 8 + [down, up])
    hidden[0, 0, 8:16], hidden[0, 0, 17] = up, 0.0310
    hidden[0, 1, :8], hidden[0, 1, 16] = down, 0.0312
    exact = hidden[0].double() @ weight[3].double()
    assert exact[1] > exact[0]
    rounded = hidden[0].bfloat16() @ weight[3].bfloat16()
    one_error = 2 * unit * float(hidden[0].norm(dim=1).max() * weight[3].norm()) + unit * float(rounded.max())
    assert rounded[0] - rounded[1] > 1.4 * one_error  # the winner is found only by looking two errors down
    maximum, winner = screen(hidden, weight, torch.full((20,), -7.0), torch.ones(1, 2, dtype=torch.bool))
    assert winner[0, 3] == 1
    # eight additions below 16, each off by at most 2^-21, and nine products by 2^-24; the other token: 7e-5
    assert maximum[0, 3] == pytest.approx(float(exact[1]) - 7, abs=10 * 2**-21)


def test_the_first_of_equal_tokens_wins() -> None:
    """As in the other implementations."""
    hidden, weight, bias, mask = inputs(1, -2.6)
    hidden[:, 5] = hidden[:, 2]
    mask[:3, 5] = True
    _, winner = screen(hidden, weight, bias, mask)
    assert not (winner % 7 == 5)[winner >= 0][: 3 * 7].any()
    assert (winner % 7 == 2)[winner >= 0].any()


def test_padding_and_empty_rows_have_no_part() -> None:
    """Padding may hold anything; a row, or a batch, without a token is inactive."""
    hidden, weight, bias, mask = inputs(2, -2.6)
    clean = screen(hidden, weight, bias, mask)
    hidden[~mask] = torch.nan
    hidden[3] = torch.inf
    for one, other in zip(clean, screen(hidden, weight, bias, mask), strict=True):
        assert torch.equal(one, other)
    assert (clean[1][3] == -1).all()
    maximum, winner = screen(hidden, weight, bias, torch.zeros_like(mask))
    assert (maximum <= 0).all()
    assert (winner == -1).all()


@pytest.mark.parametrize("where", ["hidden", "weight"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, 3e38])
def test_leaves_what_is_not_finite_to_the_plain_product(where: str, value: float) -> None:
    """No bound holds for such vectors."""
    hidden, weight, bias, mask = inputs(3, -2.6)
    assert screen(hidden, weight, bias, mask) is not None
    {"hidden": hidden[0, 2], "weight": weight[-1]}[where][4] = value
    assert screen(hidden, weight, bias, mask) is None


def test_leaves_dense_tiles_to_the_plain_product() -> None:
    """Where many pairs are active, checking them all would take longer than the plain product."""
    hidden, weight, bias, mask = inputs(4, -2.6)
    bias[60:90] = 2.0
    assert screen(hidden, weight, bias, mask) is None


def test_a_bias_that_is_not_finite() -> None:
    """A term switched off stays off; a NaN in the bias reaches the output as it does elsewhere."""
    hidden, weight, bias, mask = inputs(5, -2.6)
    bias[::2], bias[1] = -torch.inf, torch.nan
    maximum, winner = screen(hidden, weight, bias, mask)
    assert (winner[:, ::2] == -1).all()
    assert maximum[mask.any(1)][:, 1].isnan().all()
    assert (maximum[:, 3::2].relu() > 0).any()


def test_without_training_there_are_no_winners() -> None:
    """Encoding asks for the maxima alone."""
    hidden, weight, bias, mask = inputs(6, -2.6)
    maximum, winner = screen(hidden, weight, bias, mask, training=False)
    assert winner is None
    assert torch.equal(maximum, screen(hidden, weight, bias, mask)[0])


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dense", [slice(0, 0), slice(60, 90), slice(0, 30), slice(0, 130)])
def test_what_a_screen_refuses_is_done_by_the_plain_product(
    dense: slice, training: bool, ask_for: Callable[[str], None]
) -> None:
    """Every pair is decided once, whichever tiles are dense: values and gradients are the reference's."""
    ask_for(chosen.name)
    hidden, weight, bias, mask = inputs(8, -2.6)
    bias[dense] = 2.0
    assert (screen(hidden, weight, bias, mask) is None) == (dense.stop > 0)
    results = []
    for impl in ("reference", "tiled"):
        tensors = [t.clone().requires_grad_(training) for t in (hidden, weight, bias)]
        out = splade_head(*tensors, mask, impl=impl)
        results.append([out, *(torch.autograd.grad((out * out).sum(), tensors) if training else ())])
    # float32, sums of at most 16 products
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)


def test_a_vector_that_is_not_finite_is_refused_alone(ask_for: Callable[[str], None]) -> None:
    """The rest of the batch keeps its screen, and the NaN shows in its own row."""
    ask_for(chosen.name)
    hidden, weight, bias, mask = inputs(3, -2.6)
    clean = splade_head(hidden, weight, bias, mask, impl="tiled")
    hidden[0, 2, 4] = torch.nan
    out = splade_head(hidden, weight, bias, mask, impl="tiled")
    assert out[0].isnan().all()
    # the row in the same group is multiplied in float32 now, in another order
    torch.testing.assert_close(out[1:], clean[1:], rtol=1e-4, atol=1e-5)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), scale=st.sampled_from([1e-20, 1e-6, 1.0, 1e6]), tail=st.integers(0, 4))
def test_the_bound_holds_for_every_product(seed: int, scale: float, tail: int) -> None:
    """Also where a few numbers of a vector are a thousand times the others, which ruins a common scale."""
    generator = torch.Generator().manual_seed(seed)
    vectors = [torch.randn(size, 2, 24, generator=generator) ** (2 * tail + 1) * scale for size in (9, 5)]
    vectors[0] = vectors[0][:, :1]
    products, bound = narrow_products(*vectors)
    exact = vectors[0].flatten(0, 1).double() @ vectors[1].flatten(0, 1).double().t()
    assert ((products - exact).abs() <= bound).all()


def test_the_bound_is_needed() -> None:
    """Rests that all point the same way: the error is more than half of the bound, so none is to be saved."""
    token, term = torch.full((1, 1, 17), 3.49), torch.ones(1, 1, 17)
    if chosen.unit:  # each number, and then the sum 16 + 31 / 512, round down by nearly half a unit
        token[0, 0] = 1 + 0.99 * 2.0**-8
        token[0, 0, 16] = 31 / 512
    else:  # one number sets the scale to 1, the others lose nearly one half
        token[0, 0, 0], term[0, 0, 0] = 127.0, 0.0
    products, bound = narrow_products(term, token)
    error = (products - float((term.double() * token.double()).sum())).abs()
    assert 0.5 * bound < error < bound


def narrow_products(terms: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Narrow products of `[n, 1, D]` and `[m, c, D]`, `[n, m * c]` float64, and their bounds."""
    narrow = [chosen.narrow(vectors) for vectors in (terms, tokens)]
    raw = torch.empty(len(narrow[0].values), len(narrow[1].values), dtype=chosen.products)
    chosen.multiply(narrow[0].values, narrow[1].values, raw)
    scales = torch.outer(narrow[0].scale, narrow[1].scale).double()
    products = raw.double() * scales.repeat_interleave(tokens.shape[1], 1)
    factors = screening.term_factor(narrow[0]), screening.token_factor(narrow[1])
    bound = (factors[0].bound @ factors[1].bound).double().repeat_interleave(tokens.shape[1], 1)
    return products, bound + 1.02 * chosen.unit * products.abs()


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_head_and_its_gradients(
    backend: str, ask_for: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head gives the reference's output and gradients whichever backend it takes, on any processor."""
    called = []
    ask_for(backend)
    monkeypatch.setattr(tiled, "screened_maximum", lambda *args: called.append(1) or screened_maximum(*args))
    hidden, weight, bias, mask = inputs(7, -2.6)
    results = []
    for impl in ("reference", "tiled"):
        tensors = [t.clone().requires_grad_() for t in (hidden, weight, bias)]
        out = splade_head(*tensors, mask, impl=impl, double_log1p=True)
        results.append([out, *torch.autograd.grad((out * out).sum(), tensors)])
    # float32, sums of at most 16 products
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)
    assert (results[0][0] > 0).float().mean() < 0.2
    assert len(called) == (backend != "float32")


def test_every_screen_gives_the_same_bits() -> None:
    """Processes may choose differently: what a screen hands on is decided by the same float32 products."""
    hidden, weight, bias, mask = inputs(9, -2.6)
    exact = [one for one in SCREENS.values() if is_exact(one, weight.shape[1])]
    if len(exact) < 2:
        pytest.skip("this processor sums the products of one screen exactly, and the head refuses the others")
    results = []
    for other in exact:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(f"{__name__}.chosen", other)
            results.append(screen(hidden, weight, bias, mask))
    for received in results[1:]:
        assert torch.equal(received[0].relu(), results[0][0].relu())
        assert torch.equal(received[1], results[0][1])

"""Screening in bfloat16: what it hands on must be what float32 alone would have found."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lexforge.kernels import splade_head, splade_head_screening, splade_head_tiled
from lexforge.kernels.splade_head_screening import can_screen, screened_maximum


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles and chunks that small tensors cross."""
    monkeypatch.setattr(splade_head_screening, "_TILE_TERMS", 50)
    monkeypatch.setattr(splade_head_screening, "_CHECKED_AT_ONCE", 3)


def inputs(seed: int, bias: float, scale: float = 1.0, terms: int = 130) -> tuple[Tensor, ...]:
    """Hidden `[5, 7, 16]`, weight, bias and a mask with holes and an empty row."""
    generator = torch.Generator().manual_seed(seed)
    hidden = scale * torch.randn(5, 7, 16, generator=generator)
    weight = torch.randn(terms, 16, generator=generator) / 4
    mask = torch.rand(5, 7, generator=generator) < 0.7
    mask[:, 2], mask[3] = True, False
    return hidden, weight, torch.full((terms,), bias * scale), mask


def screen(hidden: Tensor, weight: Tensor, bias: Tensor | None, mask: Tensor, training: bool = True):
    """`screened_maximum` of a batch; a group takes two rows."""
    flat = hidden.reshape(-1, hidden.shape[2])
    groups = splade_head_tiled._groups(mask)
    return screened_maximum(flat, len(hidden), groups, weight, bias, training)


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


@pytest.mark.parametrize("screening", [True, False])
def test_the_head_and_its_gradients(screening: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The head gives the reference's output and gradients whether it screens or not, on any processor."""
    called = []
    monkeypatch.setattr(splade_head_tiled, "can_screen", lambda *_: screening)
    monkeypatch.setattr(
        splade_head_tiled, "screened_maximum", lambda *args: called.append(1) or screened_maximum(*args)
    )
    hidden, weight, bias, mask = inputs(7, -2.6)
    results = []
    for impl in ("reference", "tiled"):
        tensors = [t.clone().requires_grad_() for t in (hidden, weight, bias)]
        out = splade_head(*tensors, mask, impl=impl, double_log1p=True)
        results.append([out, *torch.autograd.grad((out * out).sum(), tensors)])
    # float32, sums of at most 16 products
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)
    assert (results[0][0] > 0).float().mean() < 0.2
    assert len(called) == screening


def test_only_float32_on_a_processor_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere bfloat16 products are slow, or the products are half precision already."""
    full = torch.ones(2, 2)
    for capable in (True, False):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda found=capable: {"avx512_bf16": found})
        assert can_screen(full, full) == capable
        assert not can_screen(full.double(), full.double())
        assert not can_screen(full.bfloat16(), full.bfloat16())
        assert not can_screen(full.to("meta"), full.to("meta"))

"""Attention and dropout of training: the compiled passes beside PyTorch's operators."""

from __future__ import annotations

from typing import Any

import numba
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from warm_processes import WarmProcesses

from lexforge.kernels.encoder import attention, compiled, draw_seed, dropout
from lexforge.kernels.encoder.reference import kept

SEED = (1234567, 4000000000)
# Of one rounding to bfloat16, and of sums of float32 in another order; all numbers are near 1.
CLOSE = {torch.float32: {"rtol": 2e-6, "atol": 2e-6}, torch.bfloat16: {"rtol": 2e-2, "atol": 2e-2}}
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])


def inputs(dtype: torch.dtype, length: int = 19, keys: int = 37) -> list[Tensor]:
    """Queries, keys and values of 3 texts and 2 heads, as views; the values have another width."""
    torch.manual_seed(0)
    shapes = [(3, length, 2, 8), (3, keys, 2, 8), (3, keys, 2, 5)]
    return [torch.randn(shape).to(dtype).transpose(1, 2).requires_grad_() for shape in shapes]


def masks(mask_name: str, length: int, keys: int) -> Tensor | None:
    if mask_name == "none":
        return None
    if mask_name == "padding":  # as of texts of 37, 20 and 1 tokens
        return (torch.arange(keys) < torch.tensor([keys, 20, 1])[:, None])[:, None, None]
    if mask_name == "causal":
        return torch.ones(1, 1, length, keys, dtype=torch.bool).tril()
    both = masks("padding", length, keys), masks("causal", length, keys)
    return both[0] & both[1]


def gradients(function: Any, *arguments: Any) -> list[Tensor]:
    """The result of a function of three tensors and the gradients of a sum with unlike weights."""
    result = function(*arguments)
    weights = torch.linspace(-1, 1, result.numel()).view_as(result).to(result.dtype)
    return [result, *torch.autograd.grad((result * weights).sum(), arguments[:3])]


@DTYPES
@pytest.mark.parametrize("mask_name", ["none", "padding", "causal", "both"])
@pytest.mark.parametrize("p", [0.0, 0.3])
def test_attention_is_that_of_the_formula(dtype: torch.dtype, mask_name: str, p: float) -> None:
    """The formula in float64 on the same numbers, and both gradients by autograd."""
    tensors = inputs(dtype)
    mask = masks(mask_name, 19, 37)
    found = gradients(attention, *tensors, mask, 0.35, p, SEED)
    exact = [tensor.detach().double().requires_grad_() for tensor in tensors]
    expected = gradients(lambda q, k, v: attention(q, k, v, mask, 0.35, p, SEED, impl="reference"), *exact)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == dtype
        torch.testing.assert_close(one.double(), other, **CLOSE[dtype])


@DTYPES
def test_attention_without_dropout_is_that_of_pytorch(dtype: torch.dtype) -> None:
    """`scaled_dot_product_attention` with a mask of padding."""
    tensors, mask = inputs(dtype), masks("padding", 19, 37)
    found = attention(*tensors, mask, 8**-0.5, 0.0, SEED)
    torch.testing.assert_close(found, F.scaled_dot_product_attention(*tensors, mask), **CLOSE[dtype])


def test_a_query_without_a_key_gets_nothing() -> None:
    """As in PyTorch: 0 and no gradient, where a softmax over nothing would be NaN."""
    tensors = inputs(torch.float32)
    mask = masks("padding", 19, 37)
    mask[1] = False
    found = gradients(attention, *tensors, mask, 1.0, 0.2, SEED)
    assert all(bool(tensor.isfinite().all()) for tensor in found)
    assert all(not tensor[1].any() for tensor in found)
    assert all(bool(tensor[0].any()) for tensor in found)


@DTYPES
@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_what_is_not_finite_is_not_hidden(dtype: torch.dtype, broken: float) -> None:
    """A run stops where numbers break, so no pass may turn them into good ones."""
    query, key, value = inputs(dtype)
    with torch.no_grad():
        query[0, 0, 3, 2] = broken
        found = attention(query, key, value, None, 1.0, 0.0, SEED)
        assert found[0, 0, 3].isnan().all()
        assert found[1:].isfinite().all()
        x = torch.full((50,), broken, dtype=dtype)
        assert not dropout(x, 0.5, SEED)[kept(x.shape, 0.5, SEED)].isfinite().any()


@DTYPES
@pytest.mark.parametrize("shape", [(7,), (3, 5000), (2, 8192), (0,)], ids=str)
def test_dropout_is_that_of_the_formula(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Also over the borders of the pieces that threads take, and for a view that is not contiguous."""
    torch.manual_seed(0)
    x = torch.randn(*shape, 2).to(dtype)[..., 0].requires_grad_()
    found = dropout(x, 0.3, SEED)
    expected = dropout(x.detach().double(), 0.3, SEED, impl="reference")
    torch.testing.assert_close(
        found.double(), expected, rtol=1e-2 if dtype == torch.bfloat16 else 1e-6, atol=0
    )
    if x.numel():
        (gradient,) = torch.autograd.grad(found.sum(), x)
        torch.testing.assert_close(gradient.double(), (expected != 0).double() / 0.7, rtol=1e-2, atol=0)


def test_rounding_to_bfloat16_is_that_of_pytorch() -> None:
    """To the nearest number, as in every cast of PyTorch; ties, of a factor of 1.5, go to the even one."""
    x = torch.randn(10_000, generator=torch.Generator().manual_seed(0)).bfloat16()
    assert torch.equal(dropout(x, 0.0, SEED), x)
    for p in (0.3, 1 / 3):
        found, stays = dropout(x, p, SEED), kept(x.shape, p, SEED)
        expected = (x.float() * torch.tensor(1 / (1 - p))).bfloat16()
        assert torch.equal(found[stays], expected[stays])


@pytest.mark.parametrize("p", [0.05, 0.1, 0.5])
def test_dropout_keeps_the_share_that_it_should(p: float) -> None:
    """The share, equal in each part, and no more agreement of neighbours, rows or seeds than by chance."""
    count = 2**20
    stays = kept(torch.Size([count]), p, SEED).double()
    bound = 5 * (p * (1 - p) / count) ** 0.5  # five standard deviations of the mean
    assert abs(stays.mean() - (1 - p)) < bound
    others = [
        kept(torch.Size([count]), p, seed).double() for seed in ((SEED[0] + 1, SEED[1]), (0, 1), (1, 0))
    ]
    for other in [*(stays.roll(shift) for shift in (1, 2, 128, 4096)), *others]:
        assert abs(((stays - 1 + p) * (other - 1 + p)).mean()) < bound
    parts = stays.view(64, -1).mean(dim=1)
    assert (parts - 1 + p).abs().max() < 5 * 8 * (p * (1 - p) / count) ** 0.5


def test_the_passes_take_no_more_threads_than_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks share the cores of a machine; a search afterwards has its own number again."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    used: list[int] = []
    drop = compiled.drop

    def watched(*arguments: Any) -> None:
        used.append(numba.get_num_threads())
        drop(*arguments)

    monkeypatch.setattr(compiled, "drop", watched)
    before, x = numba.get_num_threads(), torch.ones(8)
    assert torch.equal(dropout(x, 0.5, SEED), dropout(x, 0.5, SEED, impl="reference"))
    assert used == [1]
    assert numba.get_num_threads() == before


FORKED = """
import os, sys
import numba, torch
from lexforge.kernels.encoder import dropout

def dropped():
    return dropout(torch.randn(20_000, generator=torch.Generator().manual_seed(0)), 0.5, (5, 7))

expected = dropped()
child = os.fork()
if not child:
    numba.set_num_threads = lambda number: os._exit(2)
    os._exit(0 if torch.equal(dropped(), expected) else 1)
sys.exit(abs(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))
"""


def test_a_forked_process_drops_the_same(warm: WarmProcesses) -> None:
    """Its loops run on one thread, because those of numba may not be asked for there."""
    assert warm.run("-c", [FORKED]) == [0], warm.log.read_text()


def test_the_random_state_decides_the_seed() -> None:
    """A step that is encoded twice, as by gradient caching, must drop the same elements."""
    torch.manual_seed(3)
    first = [draw_seed() for _ in range(3)]
    torch.manual_seed(3)
    assert [draw_seed() for _ in range(3)] == first
    assert len(set(first)) == 3

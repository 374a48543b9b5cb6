"""The head as an operator of a compiler is the head itself, forward and backward."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from lexforge.kernels import splade_head
from lexforge.kernels.splade_head import compiled as operators


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    """What one test compiled decides nothing in the next one."""
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning, module="torch")
        yield


def inputs(rows: int, tokens: int, dtype: torch.dtype, bias: bool) -> tuple[Tensor, ...]:
    """States, weight, bias or None, and a mask with padding, a hole and an empty row."""
    generator = torch.Generator().manual_seed(rows)
    hidden = torch.randn(rows, tokens, 8, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(11, 8, generator=generator).to(dtype).requires_grad_()
    mask = torch.ones(rows, tokens, dtype=torch.int64)
    mask[0, 1], mask[1, 2:], mask[-1] = 0, 0, 0
    offsets = torch.randn(11, generator=generator).to(dtype).requires_grad_() if bias else None
    return hidden, weight, offsets, mask


def gradients(out: Tensor, tensors: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
    wanted = [tensor for tensor in tensors if tensor is not None and tensor.requires_grad]
    return torch.autograd.grad(out.square().sum(), wanted)


@pytest.mark.parametrize(("double", "bias"), [(False, True), (True, False)])
def test_compiled_equals_eager_bit_for_bit(double: bool, bias: bool) -> None:
    """The compiler calls the same code; two shapes, so that a second compilation or a dynamic one is met."""
    compiled = torch.compile(splade_head, backend="aot_eager", fullgraph=True)
    for rows, tokens in ((3, 4), (5, 6)):
        tensors = inputs(rows, tokens, torch.float32, bias)
        out, expected = (head(*tensors, double_log1p=double) for head in (compiled, splade_head))
        assert torch.equal(out, expected)
        for found, wanted in zip(gradients(out, tensors), gradients(expected, tensors), strict=True):
            assert torch.equal(found, wanted)
    with torch.no_grad():
        assert torch.equal(compiled(*tensors, double_log1p=double), expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtypes_are_those_of_the_eager_head(dtype: torch.dtype) -> None:
    """A wrong dtype in a fake kernel shows as a crash or as a cast deep inside a compiled model."""
    compiled = torch.compile(splade_head, backend="aot_eager", fullgraph=True)
    tensors = inputs(3, 4, dtype, True)
    out, expected = compiled(*tensors), splade_head(*tensors)
    assert torch.equal(out, expected)
    assert out.dtype == expected.dtype
    for found, wanted in zip(gradients(out, tensors), gradients(expected, tensors), strict=True):
        assert torch.equal(found, wanted)
        assert found.dtype == wanted.dtype


def test_autocast_reaches_the_compiled_head() -> None:
    """Under autocast the products run in bfloat16, and the gradients stay float32."""
    compiled = torch.compile(splade_head, backend="aot_eager", fullgraph=True)
    tensors = inputs(3, 4, torch.float32, True)
    with torch.autocast("cpu", torch.bfloat16):
        out, expected = compiled(*tensors), splade_head(*tensors)
    assert torch.equal(out, expected)
    assert not torch.equal(out, splade_head(*tensors))
    for found, wanted in zip(gradients(out, tensors), gradients(expected, tensors), strict=True):
        assert found.dtype == torch.float32
        assert torch.equal(found, wanted)


def test_frozen_inputs_get_no_gradient() -> None:
    """A frozen output embedding is common; its gradient must be neither computed nor returned."""
    compiled = torch.compile(splade_head, backend="aot_eager", fullgraph=True)
    hidden, weight, bias, mask = inputs(3, 4, torch.float32, True)
    weight.requires_grad_(False)
    found = gradients(compiled(hidden, weight, bias, mask), (hidden, bias))
    expected = gradients(splade_head(hidden, weight, bias, mask), (hidden, bias))
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("training", [False, True])
def test_the_operator_keeps_the_rules_of_operators(training: bool) -> None:
    """PyTorch's own check: the schema, the fake kernel with fixed and changing shapes, and autograd."""
    hidden, weight, bias, mask = inputs(3, 4, torch.float32, True)
    if not training:
        hidden, weight, bias = (tensor.detach() for tensor in (hidden, weight, bias))
    arguments = (hidden, weight, bias, mask, False, torch.float32, training)
    utilities = ["test_schema", "test_autograd_registration", "test_faketensor"]
    torch.library.opcheck(operators.head_operator, arguments, test_utils=utilities)
    with torch.no_grad():
        out, winner, divisor = operators.head_operator(*arguments[:-1], True)
    backward = (out, hidden, weight, winner, divisor, torch.float32, torch.float32, [True, training, True])
    frozen = tuple(value.detach() if isinstance(value, Tensor) else value for value in backward)
    torch.library.opcheck(operators.head_backward_operator, frozen, test_utils=utilities)


def test_the_eager_head_calls_no_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator of Python costs microseconds in each call, which only a compiler needs."""

    def refuse(*_: object) -> None:
        raise AssertionError("the operator was called outside a compiler")

    monkeypatch.setattr(operators, "head_operator", refuse)
    assert splade_head(*inputs(3, 4, torch.float32, True)).shape == (3, 11)

"""What the Triton head must compute, on the CPU; `test_triton_splade_head.py` runs it in its own process.

`TRITON_INTERPRET=1` must stand in the environment before Triton is imported, and would leak into other
tests; so this file has no test name and is run by its path. The oracle is a loop over pairs in float64.
"""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from lexforge.kernels import splade_head
from lexforge.kernels.splade_head.triton import kernels as head_kernels
from lexforge.kernels.splade_head.triton.head import splade_head_triton

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def oracle(hidden: Tensor, weight: Tensor, bias: Tensor | None, mask: Tensor, grad: Tensor, double: bool):
    """Activations, the three gradients, and the sums of their summands' sizes; pair by pair, in float64."""
    hidden, weight, grad = (tensor.detach().double() for tensor in (hidden, weight, grad))
    bias = torch.zeros(len(weight)).double() if bias is None else bias.detach().double()
    out = torch.zeros(len(hidden), len(weight), dtype=torch.float64)
    grads = [torch.zeros_like(tensor) for tensor in (hidden, weight, bias)]
    sizes = [torch.zeros_like(tensor) for tensor in (hidden, weight, bias)]
    for b, v in itertools.product(range(len(hidden)), range(len(weight))):
        logits = (hidden[b] * weight[v]).sum(1) + bias[v]
        kept = [(t, float(logits[t])) for t in range(len(logits)) if mask[b, t] != 0]
        winner, best = max(kept, key=lambda pair: pair[1], default=(-1, 0.0))  # max takes the first of equals
        if best <= 0:
            continue
        out[b, v] = math.log1p(math.log1p(best)) if double else math.log1p(best)
        g = grad[b, v] / (1 + best) / (1 + math.log1p(best) if double else 1)
        for one, place, term in zip(
            (0, 1, 2), ((b, winner), v, v), (g * weight[v], g * hidden[b, winner], g), strict=True
        ):
            grads[one][place] += term
            sizes[one][place] += term.abs()
    return out, grads, sizes


def draw(B: int, L: int, D: int, V: int, dtype: torch.dtype = torch.float32, seed: int = 0):
    """Random leaves that want gradients, a mask with holes, and a gradient for the result."""
    generator = torch.Generator().manual_seed(seed)
    shapes = (B, L, D), (V, D), (V,)
    leaves = [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]
    mask = (torch.rand(B, L, generator=generator) < 0.7).long()
    return *leaves, mask, torch.randn(B, V, generator=generator)


def check(hidden, weight, bias, mask, grad, double=False) -> None:
    """The head and its gradients against the oracle.

    Products of 16-bit inputs are exact in fp32, so the result is right to fp32 rounding in every dtype. A
    gradient is rounded to the dtype of its input, and a summand of grad_hidden once more: each at most half a
    unit of the sum of sizes; twice that is allowed, and 2e-6 of it for fp32 sums and exponentials.
    """
    out = splade_head_triton(hidden, weight, bias, mask, double)
    leaves = [leaf for leaf in (hidden, weight, bias) if leaf is not None]
    found = torch.autograd.grad(out, leaves, grad)
    expected, grads, sizes = oracle(hidden, weight, bias, mask, grad, double)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out.double(), expected, rtol=1e-6, atol=1e-6)
    for leaf, one, exact, size in zip(leaves, found, grads, sizes, strict=False):
        assert one.dtype == leaf.dtype
        allowed = max(2 * torch.finfo(leaf.dtype).eps, 2e-6) * size + torch.finfo(leaf.dtype).smallest_normal
        assert (one.double() - exact).abs().le(allowed).all()


@pytest.mark.parametrize(
    ("dtype", "with_bias", "double"),
    [
        (dtype, with_bias, with_bias == (place == 1))
        for place, dtype in enumerate(DTYPES)
        for with_bias in (True, False)
    ],
)
def test_result_and_gradients(dtype: torch.dtype, with_bias: bool, double: bool) -> None:
    """Every input dtype, with and without bias, with one log1p and two, over holes and one empty row."""
    hidden, weight, bias, mask, grad = draw(3, 21, 20, 37, dtype)
    mask[1] = 0
    check(hidden, weight, bias if with_bias else None, mask, grad, double)


@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 1), (2, 16, 16, 16), (2, 33, 15, 17), (5, 3, 40, 50), (3, 17, 32, 33)]
)
def test_sizes_around_the_tile(shape: tuple[int, int, int, int]) -> None:
    """Tile edges are 16 here (2 rows for grad_weight): one under, at and over each, and a single number."""
    check(*draw(*shape, seed=sum(shape)))


@pytest.mark.parametrize("L", [3, 8, 10, 20])
def test_short_rows_share_a_tile(L: int) -> None:
    """Four rows, two rows and four rows in three steps of a tile, then two rows in three steps, of all
    lengths down to 0 and in no order: each row's maximum and winner must be its own.
    """
    hidden, weight, bias, mask, grad = draw(7, L, 8, 18, seed=L)
    for row, length in enumerate((L, 0, 1, L, L - 1, 2, 1)):
        mask[row] = torch.arange(L) < length
    poisoned = hidden.detach().masked_fill(mask.unsqueeze(-1) == 0, torch.nan).requires_grad_()
    check(hidden, weight, bias, mask, grad)
    assert torch.equal(
        splade_head_triton(poisoned, weight, bias, mask), splade_head_triton(hidden, weight, bias, mask)
    )


@pytest.mark.parametrize(("L", "group_bytes"), [(3, 1), (3, 4 * 3 * 8 * 4), (20, 2 * 20 * 8 * 4)])
def test_groups_of_rows(L: int, group_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The states of all rows may be more than the cache holds: one tile of rows in a group, or two, and a
    last group that is not full, must compute every pair once.
    """
    hidden, weight, bias, mask, grad = draw(11, L, 8, 40)
    monkeypatch.setattr(head_kernels, "GROUP_BYTES", group_bytes)
    check(hidden, weight, bias, mask, grad)


@pytest.mark.parametrize("scale", [2.0**-40, 1.0, 2.0**20])
def test_products_of_almost_the_same_size(scale: float) -> None:
    """The later of two tokens is larger by one unit in the last place, then the earlier: it alone wins."""
    hidden = torch.zeros(2, 24, 1)
    hidden[0, 3], hidden[0, 20] = scale, scale * (1 + 2.0**-23)
    hidden[1, 3], hidden[1, 20] = scale * (1 + 2.0**-23), scale
    hidden.requires_grad_()
    out = splade_head_triton(hidden, torch.ones(3, 1), None, torch.ones(2, 24))
    (grad,) = torch.autograd.grad(out.sum(), hidden)
    assert grad.nonzero()[:, :2].tolist() == [[0, 20], [1, 3]]


@pytest.mark.filterwarnings("ignore:invalid value encountered")  # of NumPy, at inf - inf
def test_an_infinite_maximum_stays_in_its_row() -> None:
    """An overflow must show in the result, and must not read or write another row in the backward pass."""
    hidden, weight, bias, mask, grad = draw(2, 20, 8, 18)
    mask[:] = 1
    with torch.no_grad():
        weight.abs_()
        hidden[1, 7] = torch.inf
    out = splade_head_triton(hidden, weight, bias, mask)
    assert out[1].isinf().all()
    found = torch.autograd.grad(out, hidden, grad)[0][0]
    alone = splade_head_triton(hidden[:1], weight, bias, mask[:1])
    assert torch.equal(out[:1], alone)
    torch.testing.assert_close(found, torch.autograd.grad(alone, hidden, grad[:1])[0][0], rtol=0, atol=0)


@pytest.mark.parametrize("seed", range(2))
def test_random_shapes(seed: int) -> None:
    """Shapes nobody chose."""
    shape = [int(n) for n in torch.randint(1, 30, (4,), generator=torch.Generator().manual_seed(100 + seed))]
    check(*draw(*shape, dtype=DTYPES[seed], seed=seed))


@pytest.mark.parametrize("wanted", list(itertools.product([True, False], repeat=3)))
def test_subsets_of_requires_grad(wanted: tuple[bool, bool, bool]) -> None:
    """A frozen input gets no gradient and takes none from the others."""
    *leaves, mask, grad = draw(2, 9, 8, 18)
    _, exact, _ = oracle(*leaves, mask, grad, False)
    for leaf, wants in zip(leaves, wanted, strict=True):
        leaf.requires_grad_(wants)
    out = splade_head_triton(*leaves, mask)
    assert out.requires_grad == any(wanted)
    if any(wanted):
        out.backward(grad)
    for leaf, wants, one in zip(leaves, wanted, exact, strict=True):
        if wants:
            torch.testing.assert_close(
                leaf.grad.double(), one, rtol=1e-5, atol=1e-5
            )  # fp32 sums of some 20 terms
        else:
            assert leaf.grad is None


def test_no_grad_mode_gives_the_same_result() -> None:
    """Encoding takes the path that keeps no arg-max."""
    hidden, weight, bias, mask, _ = draw(2, 20, 8, 18)
    with torch.no_grad():
        plain = splade_head_triton(hidden, weight, bias, mask)
    assert torch.equal(plain, splade_head_triton(hidden, weight, bias, mask))


def test_computed_again_in_the_backward_pass() -> None:
    """Gradient caching encodes by `checkpoint`, which lets a function read what it kept only once."""
    *leaves, mask, grad = draw(2, 20, 8, 18)
    exact = torch.autograd.grad(splade_head_triton(*leaves, mask), leaves, grad)
    again = checkpoint(splade_head_triton, *leaves, mask, use_reentrant=False)
    for one, other in zip(torch.autograd.grad(again, leaves, grad), exact, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("shape", [(0, 4, 3, 5), (2, 0, 3, 5), (2, 4, 3, 0), (2, 4, 3, 5)])
def test_no_token_at_all(shape: tuple[int, int, int, int]) -> None:
    """No row, no position, no term, or a mask of zeros: zeros of the right shape, with a graph."""
    hidden, weight, bias, mask, grad = draw(*shape)
    out = splade_head_triton(hidden, weight, bias, torch.zeros_like(mask))
    assert out.shape == (shape[0], shape[3])
    assert not out.any()
    for one in torch.autograd.grad(out, [hidden, weight, bias], grad):
        assert not one.any()


def test_an_empty_row_stays_zero_under_an_infinite_bias() -> None:
    """The maximum over nothing is -inf; adding +inf to it must not make a NaN."""
    hidden, weight, _, mask, _ = draw(2, 4, 3, 5)
    mask[0] = 0
    out = splade_head_triton(hidden, weight, torch.full((5,), torch.inf), mask)
    assert not out[0].any()
    assert out[1].isinf().all()


@pytest.mark.parametrize("poison", [torch.inf, torch.nan])
def test_padding_is_never_read(poison: float) -> None:
    """A padded position may hold anything, and its gradient is exactly 0."""
    hidden, weight, bias, mask, grad = draw(3, 19, 8, 18)
    clean = splade_head_triton(hidden, weight, bias, mask)
    dirty = hidden.detach().masked_fill(mask.unsqueeze(-1) == 0, poison).requires_grad_()
    out = splade_head_triton(dirty, weight, bias, mask)
    assert torch.equal(out, clean)
    for one, other in zip(
        torch.autograd.grad(out, [dirty, weight, bias], grad),
        torch.autograd.grad(clean, [hidden, weight, bias], grad),
        strict=True,
    ):
        assert torch.equal(one, other)
    assert not torch.autograd.grad(splade_head_triton(dirty, weight, bias, mask).sum(), dirty)[0][
        mask == 0
    ].any()


def test_nan_of_a_token_is_not_hidden() -> None:
    """A diverged model must show: maxima that drop NaN would return a clean zero."""
    hidden, weight, bias, mask, grad = draw(2, 19, 8, 18)
    mask[:] = 1
    with torch.no_grad():
        hidden[1, 17, 3] = torch.nan
    out = splade_head_triton(hidden, weight, bias, mask)
    assert out[1].isnan().all()
    assert not out[0].isnan().any()
    grads = torch.autograd.grad(out, [hidden, weight, bias], grad)
    assert all(one.isnan().any() for one in grads)


def test_a_bias_of_minus_infinity_switches_terms_off() -> None:
    """A vocabulary mask travels in the bias: activation 0, gradient 0, no NaN."""
    hidden, weight, bias, mask, grad = draw(2, 9, 8, 18)
    with torch.no_grad():
        bias[::2] = -torch.inf
    check(hidden, weight, bias, mask, grad)
    out = splade_head_triton(hidden, weight, bias, mask)
    assert not out[:, ::2].any()
    assert not torch.autograd.grad(out.sum(), weight)[0][::2].any()


def test_the_first_of_equal_tokens_takes_the_gradient() -> None:
    """Ties are the rule in repeated text; the choice must not depend on the tile (positions 3, 5 and 20)."""
    hidden = torch.zeros(1, 24, 2)
    hidden[0, [3, 5, 20]] = torch.tensor([1.0, 2.0])
    hidden.requires_grad_()
    out = splade_head_triton(hidden, torch.ones(3, 2), None, torch.ones(1, 24))
    (grad,) = torch.autograd.grad(out.sum(), hidden)
    assert grad.nonzero()[:, 1].unique().tolist() == [3]
    # worked by hand: logit 3, slope 1/4, three terms with weights of 1
    torch.testing.assert_close(grad[0, 3], torch.tensor([0.75, 0.75]), rtol=1e-6, atol=0)


def test_layouts_that_are_not_contiguous() -> None:
    """Transposed states, a weight seen through .T, strided bias and mask, an expanded gradient."""
    hidden, weight, bias, mask, _ = draw(3, 18, 8, 20)
    for shuffled in (
        hidden.detach().transpose(0, 1).contiguous().transpose(0, 1),
        hidden.detach().permute(2, 0, 1).contiguous().permute(1, 2, 0),
        torch.cat([hidden.detach(), hidden.detach()], 2)[:, :, :8],
    ):
        check(
            shuffled.requires_grad_(),
            weight.detach().T.contiguous().T.requires_grad_(),
            torch.stack([bias.detach(), bias.detach()], 1)[:, 0].requires_grad_(),
            mask.T.contiguous().T.bool(),
            torch.ones(()).expand(3, 20),
        )


@pytest.mark.parametrize("public", [False, True])
def test_autocast_keeps_float32_gradients(public: bool) -> None:
    """The products run in bf16, while the master weight's gradient is never rounded to it, nor is a bf16 copy
    of the weight kept for the backward pass; by a direct call and by the public function.
    """
    hidden, weight, bias, mask, grad = draw(2, 20, 8, 18)
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16),
    ):
        if public:
            out = splade_head(hidden, weight, bias, mask, impl="triton")
        else:
            out = splade_head_triton(hidden, weight, bias, mask)
    assert all(tensor.dtype != torch.bfloat16 for tensor in kept)
    assert [tensor.data_ptr() for tensor in kept if tensor.shape == weight.shape] == [weight.data_ptr()]
    grads = torch.autograd.grad(out, [hidden, weight, bias], grad)
    expected, exact, _ = oracle(hidden.bfloat16(), weight.bfloat16(), bias, mask, grad, False)
    torch.testing.assert_close(out.double(), expected, rtol=1e-6, atol=1e-6)
    assert [one.dtype for one in grads] == [torch.float32] * 3
    torch.testing.assert_close(grads[1].double(), exact[1], rtol=1e-5, atol=1e-5)  # fp32 sums
    torch.testing.assert_close(grads[2].double(), exact[2], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        grads[0].double(), exact[0], rtol=0, atol=2**-6
    )  # g rounded to bf16 in `select`


@pytest.mark.slow
def test_positions_beyond_16_bits() -> None:
    """A winner at position 32,768 does not fit in int16: the wider type takes over."""
    hidden, weight, bias, _, grad = draw(1, 2**15 + 1, 3, 5)
    mask = torch.zeros(1, 2**15 + 1)
    mask[0, [0, -1]] = 1
    with torch.no_grad():
        hidden[0, -1] *= 5
    out = splade_head_triton(hidden, weight, bias, mask)
    short = hidden.detach()[:, [0, -1]]
    other = splade_head_triton(short, weight, bias, torch.ones(1, 2))
    assert torch.equal(out, other)
    assert torch.equal(torch.autograd.grad(out, weight, grad)[0], torch.autograd.grad(other, weight, grad)[0])


def test_equal_from_run_to_run() -> None:
    """No atomic operation: two runs give the same bits."""
    hidden, weight, bias, mask, grad = draw(3, 20, 18, 40)
    runs = []
    for _ in range(2):
        out = splade_head_triton(hidden, weight, bias, mask)
        runs.append([out, *torch.autograd.grad(out, [hidden, weight, bias], grad)])
    assert all(torch.equal(one, other) for one, other in zip(*runs, strict=True))


@pytest.mark.parametrize("autocast", [False, True])
def test_the_public_function_reaches_the_kernel(autocast: bool) -> None:
    """`impl="triton"` and `impl="reference"` of the one public function agree, result and gradient."""
    hidden, weight, bias, mask, grad = draw(2, 20, 8, 18)
    results = []
    for impl in ("triton", "reference"):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            out = splade_head(hidden, weight, bias, mask, impl=impl, double_log1p=True)
        results.append([out, *torch.autograd.grad(out, [hidden, weight, bias], grad)])
    # under autocast the reference rounds logits and gradients to bf16, 8 bits, and sums some 40 of them
    tolerance = 0.1 if autocast else 1e-5
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor"
)  # the compiler looks at a break's tensors
def test_a_compiled_function_launches_the_kernels_as_they_are() -> None:
    """`torch.compile` stands around the kernels, which are compiled already, and changes no bit."""
    hidden, weight, bias, mask, grad = draw(2, 6, 8, 18)

    def doubled(*tensors: Tensor) -> Tensor:
        return 2 * splade_head(*tensors, impl="triton")

    results = []
    for function in (torch.compile(doubled, backend="eager"), doubled):
        out = function(hidden, weight, bias, mask)
        results.append([out, *torch.autograd.grad(out, [hidden, weight, bias], grad)])
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def test_bad_input_is_refused() -> None:
    """A width without a product and a dtype without a kernel, each named in the message."""
    hidden, weight, bias, mask = (tensor.detach() for tensor in draw(2, 4, 3, 5)[:4])
    for arguments, message in (
        ((hidden[..., :0], weight[:, :0], bias, mask), "D > 0"),
        ((hidden.double(), weight.double(), bias, mask), "float64"),
    ):
        with pytest.raises(ValueError, match=message):
            splade_head_triton(*arguments)


def test_nothing_is_timed_here() -> None:
    """Tuning needs a GPU; one config for each kernel is what keeps the interpreter out of it."""
    kernels = head_kernels
    assert kernels.INTERPRETING
    for kernel in (kernels.forward_kernel, kernels.grad_hidden_kernel, kernels.grad_weight_kernel):
        assert len(kernel.configs) == 1

"""The moving average against its recursion, worked parameter by parameter."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from lexforge.models import MomentumEncoder

TEXTS = ["sort a list", "서울 검색 문서"]


def step(model: nn.Module, optimizer: torch.optim.Optimizer, texts: list[str] = TEXTS) -> None:
    optimizer.zero_grad()
    torch.manual_seed(0)  # of the dropout
    model(model.preprocess(texts))["sentence_embedding"].square().sum().backward()
    optimizer.step()


def parameters(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
@pytest.mark.parametrize("optimizer_class", [torch.optim.AdamW, torch.optim.SGD])
def test_it_follows_once_an_optimizer_step(tiny_dense, optimizer_class, fused: bool) -> None:
    """Two micro-batches a step, three steps; fused optimizers do not touch autograd's version counters."""
    model = tiny_dense.train()
    encoder = MomentumEncoder(model, 0.75)
    optimizer = optimizer_class(model.parameters(), lr=0.01, fused=fused)
    expected = parameters(model)
    for _ in range(3):
        for _ in range(2):
            encoder.encode(model, model.preprocess(TEXTS))
        torch.testing.assert_close(list(encoder.tensors().values()), expected, rtol=1e-6, atol=1e-7)
        step(model, optimizer)
        expected = [0.75 * a + 0.25 * p for a, p in zip(expected, parameters(model), strict=True)]


def test_it_starts_as_the_model_is_at_its_first_training_forward(tiny_dense) -> None:
    """Weights loaded or synchronised after the loss was built are the start, not a step."""
    encoder = MomentumEncoder(tiny_dense, 0.9)
    with torch.no_grad():
        for parameter in tiny_dense.parameters():
            parameter.mul_(1.5)
    tiny_dense.eval()
    with torch.no_grad():
        expected = tiny_dense(tiny_dense.preprocess(TEXTS))["sentence_embedding"]
        for parameter in tiny_dense.parameters():
            parameter.mul_(1.0)
    keys = encoder.encode(tiny_dense, tiny_dense.preprocess(TEXTS))  # before training: the model's own
    torch.testing.assert_close(keys, expected)
    with torch.no_grad():
        for parameter in tiny_dense.parameters():
            parameter.mul_(0.5)
    encoder.encode(tiny_dense.train(), tiny_dense.preprocess(TEXTS))
    torch.testing.assert_close(list(encoder.tensors().values()), parameters(tiny_dense), rtol=0, atol=0)


def test_evaluation_moves_nothing(tiny_dense) -> None:
    """An evaluation between two steps must not change the run."""
    model = tiny_dense.train()
    encoder = MomentumEncoder(model, 0.5)
    encoder.encode(model, model.preprocess(TEXTS))
    step(model, torch.optim.SGD(model.parameters(), lr=0.1))
    before = copy.deepcopy(list(encoder.tensors().values()))
    encoder.encode(model.eval(), model.preprocess(TEXTS))
    with torch.no_grad():  # as a trainer evaluates, whatever a wrapper's mode says
        encoder.encode(model.train(), model.preprocess(TEXTS))
    torch.testing.assert_close(list(encoder.tensors().values()), before, rtol=0, atol=0)
    encoder.encode(model, model.preprocess(TEXTS))
    assert not torch.equal(next(iter(encoder.tensors().values())), before[0])


def test_a_saved_average_continues_bit_for_bit(tiny_dense) -> None:
    """Saved with the step taken in, loaded without taking it in again."""
    model = tiny_dense.train()
    encoder, optimizer = MomentumEncoder(model, 0.7), torch.optim.SGD(model.parameters(), lr=0.1)
    features = model.preprocess(TEXTS)
    for _ in range(2):
        encoder.encode(model, features)
        step(model, optimizer)
    encoder.follow(model)
    saved = {name: tensor.clone() for name, tensor in encoder.tensors().items()}
    resumed_model = copy.deepcopy(model)
    resumed = MomentumEncoder(resumed_model, 0.7)
    resumed.follow(resumed_model)
    with torch.no_grad():
        for name, tensor in resumed.tensors().items():
            tensor.copy_(saved[name])
    for one, of in ((encoder, model), (resumed, resumed_model)):
        one.encode(of, features)  # no step since: nothing moves
        torch.testing.assert_close(one.tensors(), saved, rtol=0, atol=0)
        step(of, torch.optim.SGD(of.parameters(), lr=0.1))
        one.encode(of, features)
    torch.testing.assert_close(encoder.tensors(), resumed.tensors(), rtol=0, atol=0)


def test_keys_have_no_dropout(tiny_dense) -> None:
    """The noise of dropout is in the embeddings of the model only, although its copy begins in training."""
    features = tiny_dense.train().preprocess(TEXTS)
    encoder = MomentumEncoder(tiny_dense)
    first, second = (tiny_dense(dict(features))["sentence_embedding"] for _ in range(2))
    assert not torch.equal(first, second)
    first, second = (encoder.encode(tiny_dense, features) for _ in range(2))
    assert torch.equal(first, second)


def test_keys_have_no_gradient_and_the_batch_stays_as_it_was(tiny_dense) -> None:
    """The column may be read again by the loss; modules write into the dict they get."""
    features = tiny_dense.train().preprocess(TEXTS)
    names = set(features)
    keys = MomentumEncoder(tiny_dense).encode(tiny_dense, features)
    assert not keys.requires_grad
    assert set(features) == names


def test_half_precision_models_are_averaged_in_float32(tiny_dense) -> None:
    """.999 of a bfloat16 weight plus .001 of another is the weight itself, for ever."""
    model = tiny_dense.bfloat16().train()
    encoder = MomentumEncoder(model, 0.999)
    encoder.encode(model, model.preprocess(TEXTS))
    before = next(iter(encoder.tensors().values())).clone()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    encoder.encode(model, model.preprocess(TEXTS))
    after = next(iter(encoder.tensors().values()))
    assert after.dtype == torch.float32
    torch.testing.assert_close(after, before * 1.001, rtol=1e-6, atol=1e-8)


class Normed(nn.Module):
    """A buffer that changes in each forward, and tied parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3, bias=False)
        self.second = nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(3)

    def forward(self, features: dict) -> dict:
        return {"sentence_embedding": self.norm(self.second(self.first(features["x"])))}


def test_buffers_are_copied_and_tied_parameters_kept_once() -> None:
    """Running statistics belong to the model; a tied weight saved twice is refused by safetensors."""
    model = Normed().train()
    encoder = MomentumEncoder(model, 0.5)
    features = {"x": torch.randn(8, 3)}
    encoder.encode(model, features)
    model(features)["sentence_embedding"].square().sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    encoder.encode(model, features)
    tensors = encoder.tensors()
    assert "second.weight" not in tensors
    torch.testing.assert_close(tensors["norm.running_mean"], model.norm.running_mean)
    assert encoder.average.second.weight is encoder.average.first.weight


def test_one_changed_number_is_seen() -> None:
    """The checksum reads every bit, in parameters of odd sizes and of two-byte types too."""
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        model = nn.Sequential(nn.Linear(3, 1), nn.Linear(1, 5)).to(dtype).train()
        encoder = MomentumEncoder(model, 0.5)
        encoder.follow(model)
        for parameter in model.parameters():
            for index in range(parameter.numel()):
                before = [tensor.clone() for tensor in encoder.tensors().values()]
                with torch.no_grad():
                    parameter.view(-1)[index] += 0.25
                encoder.follow(model)
                after = list(encoder.tensors().values())
                assert any(not torch.equal(a, b) for a, b in zip(after, before, strict=True))


def test_errors(tiny_dense, tiny_splade) -> None:
    """A momentum that never moves, another model."""
    for momentum in (1.0, -0.1, float("nan")):
        with pytest.raises(ValueError, match=r"momentum must lie in \[0, 1\)"):
            MomentumEncoder(tiny_dense, momentum)
    with pytest.raises(ValueError, match="cannot follow a sharded or another model"):
        MomentumEncoder(nn.Linear(2, 3)).follow(nn.Linear(3, 2))
    with pytest.raises(ValueError, match=r"model of 2 parameters; received one of 1, .* add adapters"):
        MomentumEncoder(nn.Linear(2, 3)).follow(nn.Linear(2, 3, bias=False))

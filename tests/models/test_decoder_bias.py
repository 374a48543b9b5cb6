"""The decoder's bias: the idf of the active terms and the threshold by hand, saved, and who may write it."""

from __future__ import annotations

import ast
from math import log
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SparseEncoder

import lexforge
from lexforge.corpus import encode
from lexforge.models import (
    build_splade,
    lower_bias,
    restrict_output_vocabulary,
    shift_bias_by_idf,
    vocabulary_size,
)
from lexforge.models.decoder_bias import BANNED_BIAS, raised_bias

TEXTS = ["sort a list of words", "the index", "query a vector"]


@pytest.fixture
def model(tiny_checkpoint: Path) -> SparseEncoder:
    return build_splade(tiny_checkpoint, device="cpu")


def bias(model: SparseEncoder) -> torch.Tensor:
    return model[0].model.get_output_embeddings().bias.detach().clone()


def test_the_shift_is_the_idf_above_its_mean(model: SparseEncoder) -> None:
    """Ten documents; term 0 is active in all, term 1 in one, the others in none: worked out by hand."""
    before = bias(model)
    frequency = np.zeros(len(before))
    frequency[:2] = 10, 1
    assert shift_bias_by_idf(model, frequency, 10, 0.5) is model
    shift = bias(model) - before
    common, rare, absent = log(11 / 10.5), log(11 / 1.5), log(11 / 0.5)
    mean = (10 * common + rare) / 11
    assert shift[0].item() == pytest.approx(0.5 * (common - mean), abs=1e-6)
    assert shift[1].item() == pytest.approx(0.5 * (rare - mean), abs=1e-6)
    assert absent - mean > 2  # so the limit is at work
    assert shift[2:].tolist() == pytest.approx([1.0] * (len(before) - 2), abs=1e-6)


def test_it_changes_no_other_weight_and_strength_0_changes_none(model: SparseEncoder) -> None:
    """An encoder is tied: a shift that touched the embedding would change what the texts mean."""
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    frequency = np.ones(vocabulary_size(model))
    shift_bias_by_idf(model, frequency, 3, 0.0)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    frequency[0] = 3
    shift_bias_by_idf(model, frequency, 3, 1.0)
    changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed
    assert all(name.endswith("bias") and "predictions" in name for name in changed), changed


def test_plain_sentence_transformers_loads_the_shift_and_banned_terms_stay_banned(
    model: SparseEncoder, tmp_path: Path
) -> None:
    """The shift is part of the saved weights, and it must not lift the ban of a special token."""
    restrict_output_vocabulary(model, [0, 1, 2])
    frequency = np.zeros(vocabulary_size(model))
    frequency[5] = 2
    shift_bias_by_idf(model, frequency, 2, 1.0)
    expected = model.encode(TEXTS, convert_to_sparse_tensor=False, show_progress_bar=False).cpu().numpy()
    assert not expected[:, :3].any()
    model.save_pretrained(str(tmp_path))
    plain = SparseEncoder(str(tmp_path), device="cpu")
    found = plain.encode(TEXTS, convert_to_sparse_tensor=False, show_progress_bar=False).cpu().numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("frequency", "documents", "strength", "message"),
    [
        ([1.0], 3, 1.0, r"must be \[\d+\], as the decoder; received \[1\]"),
        (None, 0, 1.0, "number of documents"),
        (None, 1, -1.0, "strength must be finite and >= 0; received -1"),
        (None, 1, float("nan"), "strength must be finite"),
        ("silent", 3, 1.0, "with a term above 0"),
        ("too many", 3, 1.0, "received values from 0 to 4"),
    ],
)
def test_bad_input_is_refused(
    model: SparseEncoder, frequency: object, documents: int, strength: float, message: str
) -> None:
    """A wrong count would silently move every activation."""
    size = vocabulary_size(model)
    given = {"silent": np.zeros(size), "too many": np.r_[4, np.zeros(size - 1)]}
    counts = (
        given.get(frequency, np.ones(size)) if isinstance(frequency, str) or frequency is None else frequency
    )
    before = bias(model)
    with pytest.raises(ValueError, match=message):
        shift_bias_by_idf(model, counts, documents, strength)
    assert torch.equal(bias(model), before)


def test_a_threshold_drops_the_terms_below_it_and_no_other(model: SparseEncoder) -> None:
    """log(1 + relu(x - t)) from the activations before: y = log(1 + relu(e^y - 1 - t))."""
    before = model.encode(TEXTS, convert_to_sparse_tensor=False, show_progress_bar=False).cpu().numpy()
    threshold = float(np.median(np.expm1(before[before > 0])))
    assert lower_bias(model, threshold) is model
    after = model.encode(TEXTS, convert_to_sparse_tensor=False, show_progress_bar=False).cpu().numpy()
    expected = np.log1p(np.maximum(np.expm1(before) - threshold, 0))
    np.testing.assert_allclose(after, expected, atol=1e-5)
    assert 0 < (after > 0).sum() < (before > 0).sum()
    with pytest.raises(ValueError, match="level of logits must be finite; received inf"):
        lower_bias(model, float("inf"))


def test_a_threshold_leaves_banned_terms_where_they_are(model: SparseEncoder) -> None:
    """A ban is one number, by which it is known again, whatever is written into the bias after it."""
    restrict_output_vocabulary(model, [3])
    lower_bias(model, 0.3)
    lower_bias(model, -70.0)
    assert bias(model)[3] == BANNED_BIAS


def test_a_raised_bias_is_put_back_whatever_happens(model: SparseEncoder) -> None:
    """An encoding that fails must not leave a model with all terms active."""
    before = bias(model)
    with raised_bias(model, 2.5):
        torch.testing.assert_close(bias(model), before + 2.5)
    assert torch.equal(bias(model), before)
    with pytest.raises(ValueError, match="batch_size"), raised_bias(model, 2.5):
        encode(model, TEXTS, "document", batch_size=0)
    assert torch.equal(bias(model), before)


def writers_of_bias(source: str) -> list[int]:
    """The lines of a module that write an attribute `bias`, or a name that was taken from one."""
    tree = ast.parse(source)
    names: set[str] = set()

    def is_bias(node: ast.AST) -> bool:
        """Whether an expression is a bias, a part of one, or a name of one; not what is computed from it."""
        while isinstance(node, ast.Subscript | ast.Starred):
            node = node.value
        if isinstance(node, ast.Attribute):
            return node.attr == "bias" or (node.attr == "data" and is_bias(node.value))
        if isinstance(node, ast.Call):  # bias.detach() shares its memory
            called = node.func
            shares = isinstance(called, ast.Attribute) and called.attr in ("detach", "view", "squeeze")
            return (shares and is_bias(called.value)) or "decoder_biases" in ast.unparse(called)  # type: ignore[attr-defined]
        if isinstance(node, ast.ListComp):
            return is_bias(node.elt)
        return isinstance(node, ast.Name) and node.id in names

    def bind(target: ast.AST, value: ast.AST) -> None:
        if is_bias(value):
            names.update(part.id for part in ast.walk(target) if isinstance(part, ast.Name))

    for _ in range(3):  # a name of a name of a name
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    if not isinstance(target, ast.Attribute | ast.Subscript):
                        bind(target, node.value)
            elif isinstance(node, ast.For | ast.comprehension):
                bind(node.target, node.iter)
    found = []
    for node in ast.walk(tree):
        written: list[ast.AST] = []
        if isinstance(node, ast.Assign):
            written = [one for one in node.targets if isinstance(one, ast.Attribute | ast.Subscript)]
        elif isinstance(node, ast.AugAssign):
            written = [node.target]
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func).split(".")[-1]
            if name.endswith("_") and not name.endswith("__"):  # bias.add_(1), init.zeros_(bias)
                written = [*node.args, *([node.func.value] if isinstance(node.func, ast.Attribute) else [])]
            elif name in ("broadcast", "all_reduce", "setattr"):
                written = [*node.args]
                if name == "setattr" and any(getattr(one, "value", None) == "bias" for one in node.args):
                    found.append(node.lineno)
        if any(is_bias(one) for one in written):
            found.append(node.lineno)
    return sorted(set(found))


@pytest.mark.parametrize(
    "line",
    [
        "decoder.bias += torch.where(decoder.bias > -5e3, shift, 0.0)",
        "decoder.bias.copy_(scale * (decoder.bias.double() - mean))",
        "decoder.bias[torch.tensor(ids)] = -1e4",
        "decoder.bias = nn.Parameter(values)",
        "decoder.bias.data[3] = 0",
        "bias = splade_decoders(model)[0].bias\nbias += depth",
        "for bias in [decoder.bias for decoder in decoders]:\n    bias -= threshold",
        "(bias,) = decoder_biases(model)\nbias.sub_(1)",
        "for one in decoder_biases(model):\n    one.detach().clamp_(0)",
        "bias = decoder.bias\ndist.broadcast(bias.detach(), src=0)",
        "nn.init.zeros_(decoder.bias)",
        "setattr(decoder, 'bias', values)",
    ],
)
def test_a_writer_is_found(line: str) -> None:
    """The next test holds nothing if it overlooks a way to write."""
    assert writers_of_bias(line)
    assert not writers_of_bias("bias = decoder.bias.double()\nvalues = bias - 1\nvalues -= mean")


def test_one_module_writes_the_bias_of_a_decoder() -> None:
    """Ban, idf, scale, threshold and trimming share these numbers: two writers would undo each other's.

    `lexical_init` makes the weights of a model that does not exist yet.
    """
    package = Path(lexforge.__file__).parent
    allowed = {"models/decoder_bias.py", "models/lexical_init.py"}
    found = {
        f"{path.relative_to(package).as_posix()}:{line}"
        for path in package.rglob("*.py")
        if path.relative_to(package).as_posix() not in allowed
        and "bias" in (source := path.read_text(encoding="utf-8"))
        for line in writers_of_bias(source)
    }
    assert not found
    assert all(writers_of_bias((package / name).read_text(encoding="utf-8")) for name in allowed)

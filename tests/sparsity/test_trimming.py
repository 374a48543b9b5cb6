"""The trimming of documents: a naive count, a saved model with the wanted number, and what is refused."""

from __future__ import annotations

import logging
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SparseEncoder
from sentence_transformers.base.modules import Normalize, Router
from sentence_transformers.sparse_encoder.modules import SpladePooling, Transformer
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM

from lexforge.models import build_inference_free, build_splade, restrict_output_vocabulary
from lexforge.models.decoder_bias import BANNED_BIAS
from lexforge.sparsity import check_terms_of_model, document_levels, mean_active_terms, trim_documents
from lexforge.sparsity.trimming import scale_after

WORDS = "list array search index query document vector sparse token model train file graph tree".split()
DOCUMENTS = [f"the {a} of a {b} is in the {c}" for a, b, c in zip(WORDS, WORDS[3:], WORDS[5:], strict=False)]

UNEVEN = [" ".join(WORDS[:length]) for length in range(1, len(WORDS))]


def mean_active(model: SparseEncoder, texts: list[str]) -> float:
    vectors = model.encode(texts, convert_to_sparse_tensor=False)
    return float((vectors > 0).sum(dim=1).float().mean())


def encoder(checkpoint: Path, activation: str = "relu") -> SparseEncoder:
    transformer = Transformer(str(checkpoint), transformer_task="fill-mask", max_seq_length=32)
    pooling = SpladePooling("max", activation_function=activation)  # type: ignore[arg-type]
    return SparseEncoder(modules=[transformer, pooling], device="cpu")


@pytest.mark.parametrize("wanted", [1, 12, 40.5])
def test_the_level_lies_between_the_logits_that_count_and_the_others(
    tiny_splade: SparseEncoder, wanted: float
) -> None:
    """The oracle sorts the logits of one document after the other: one level is taken from all terms."""
    transformer = tiny_splade[0]
    bias = transformer.model.get_output_embeddings().bias
    before = bias.detach().clone()
    logits: list[float] = []
    with torch.no_grad():
        for text in DOCUMENTS:
            tokens = transformer.tokenizer(text, return_tensors="pt")
            logits += transformer.model(**tokens).logits[0].amax(dim=0).tolist()
    logits.sort(reverse=True)
    count = round(wanted * len(DOCUMENTS))
    level = (logits[count - 1] + logits[count]) / 2
    assert trim_documents(tiny_splade, DOCUMENTS, wanted) == count / len(DOCUMENTS)
    scale = scale_after(level)
    torch.testing.assert_close(bias.detach() / scale, before - level, rtol=0, atol=2e-6)  # float32


@pytest.mark.parametrize("wanted", [3, 11.5])
def test_the_limit_of_a_model_is_in_force_while_the_level_is_sought(
    tiny_checkpoint: Path, tmp_path: Path, wanted: float
) -> None:
    """The oracle lowers the level by small steps and counts min(limit, terms above it), document by document;
    without the limit the level would leave fewer terms than wanted.
    """
    model = encoder(tiny_checkpoint)
    with torch.no_grad():
        rows = [
            model[0].model(**model[0].tokenizer(t, return_tensors="pt")).logits[0].amax(0) for t in UNEVEN
        ]
    model.max_active_dims = 12

    def mean(level: float) -> float:
        return sum(min(12, int((row > level).sum())) for row in rows) / len(rows)

    before = model[0].model.get_output_embeddings().bias.detach().clone()
    told = trim_documents(model, UNEVEN, wanted, scaled=False)
    assert told == pytest.approx(wanted, abs=1 / len(UNEVEN))
    level = float((before - model[0].model.get_output_embeddings().bias.detach())[0])
    assert mean(level) == pytest.approx(wanted, abs=1 / len(UNEVEN))
    if wanted > 5:
        assert sum(int((row > level).sum()) for row in rows) / len(rows) > wanted + 1  # the limit is at work
    model.save_pretrained(str(tmp_path / "model"))
    plain = SparseEncoder(str(tmp_path / "model"), device="cpu")
    assert plain.max_active_dims == 12
    assert mean_active(plain, UNEVEN) == pytest.approx(wanted, abs=1 / len(UNEVEN))


def test_several_numbers_are_found_in_one_encoding(tiny_checkpoint: Path) -> None:
    """A curve asks for seven: each must be what trimming to it alone gives, and the model stays as it is."""
    model = encoder(tiny_checkpoint)
    before = mean_active(model, DOCUMENTS)
    found = document_levels(model, DOCUMENTS, [3, 60, 17])
    assert found.before == pytest.approx(before) == mean_active(model, DOCUMENTS)
    for wanted in (3, 60, 17):
        alone = encoder(tiny_checkpoint)
        bias = alone[0].model.get_output_embeddings().bias
        start = bias.detach().clone()
        assert trim_documents(alone, DOCUMENTS, wanted) == found.reached[wanted]
        lowered = bias.detach() / found.scales[wanted]
        torch.testing.assert_close(start - found.levels[wanted], lowered, rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    ("level", "scale"),
    [(-3.0, 1), (0.0, 1), (1.1, 1), (1.2, 2), (1.6, 4), (2.2, 8), (2.7, 16), (4.1, 32), (40.0, 64)],
)
def test_the_scale_is_a_power_of_two(level: float, scale: int) -> None:
    """Another factor would be rounded, and a term near the level could come or go."""
    assert scale_after(level) == scale


def test_a_scale_leaves_the_same_terms_to_the_last_one(tiny_checkpoint: Path) -> None:
    """Logits are those of the level times the scale, bit for bit, in queries and documents."""
    lowered, scaled = encoder(tiny_checkpoint), encoder(tiny_checkpoint)
    trim_documents(lowered, DOCUMENTS, 5, scaled=False)
    trim_documents(scaled, DOCUMENTS, 5)
    found = document_levels(encoder(tiny_checkpoint), DOCUMENTS, [5])
    assert found.scales[5] == scale_after(found.levels[5]) > 1
    for model in (lowered, scaled):
        model.eval()
    for text in DOCUMENTS:
        with torch.no_grad():
            one, other = (
                model[0].model(**model[0].tokenizer(text, return_tensors="pt")).logits
                for model in (lowered, scaled)
            )
        torch.testing.assert_close(other, one * found.scales[5], rtol=0, atol=0)


def test_the_terms_before_are_counted_where_most_of_them_go(tiny_checkpoint: Path, monkeypatch) -> None:
    """Once a part of the documents has enough logits, only larger ones are kept; the others still count."""
    monkeypatch.setattr("lexforge.sparsity.sample.BLOCK_ENTRIES", 1)  # one document per part
    model = encoder(tiny_checkpoint)
    with torch.no_grad():
        model[0].model.get_output_embeddings().bias += 3
    assert mean_active(model, DOCUMENTS) > 40
    assert document_levels(model, DOCUMENTS, [2]).before == pytest.approx(mean_active(model, DOCUMENTS))


def test_memory_holds_the_vectors_of_a_part_of_the_documents(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """A head that was never trained activates much of a large vocabulary in every document: the vectors of
    the 3,000 documents of a run would fill tens of gigabytes.
    """
    documents = [f"the {a} of {b}" for a in WORDS for b in WORDS][::2]
    config = BertConfig.from_pretrained(tiny_checkpoint, vocab_size=100_000, hidden_size=8)
    torch.manual_seed(0)
    BertForMaskedLM(config).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(tiny_checkpoint).save_pretrained(tmp_path)
    peaks = []
    for some in (documents[::2], documents):
        model = build_splade(tmp_path, device="cpu")
        tracemalloc.start()
        assert trim_documents(model, some, 20) == pytest.approx(20, rel=0.01)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert mean_active_terms(model, {"document": documents})["document"] == pytest.approx(20, rel=0.01)
    assert peaks[1] < 1.5 * peaks[0]


@pytest.mark.parametrize("activation", ["relu", "log1p_relu"])
@pytest.mark.parametrize("shift", [-40.0, 0.0, 40.0], ids=["empty", "as it is", "dense"])
def test_the_saved_model_has_the_wanted_number(
    tiny_checkpoint: Path, tmp_path: Path, activation: str, shift: float
) -> None:
    """From every term active and from none, read back by plain sentence-transformers with equal vectors;
    a term that is forbidden stays so.
    """
    model = encoder(tiny_checkpoint, activation)
    bias = model[0].model.get_output_embeddings().bias
    with torch.no_grad():
        bias += shift
    restrict_output_vocabulary(model, [7, 30])
    assert trim_documents(model, DOCUMENTS, 20) == 20.0
    assert mean_active(model, DOCUMENTS) == 20.0
    assert bias[[7, 30]].tolist() == [BANNED_BIAS, BANNED_BIAS]
    model.save_pretrained(str(tmp_path / "model"))
    plain = SparseEncoder(str(tmp_path / "model"), device="cpu")
    ours, theirs = (m.encode(DOCUMENTS, convert_to_sparse_tensor=False) for m in (model, plain))
    torch.testing.assert_close(theirs, ours, rtol=0, atol=0)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("wanted", [5, 20, 40])
def test_the_number_that_is_told_is_that_of_the_rounded_bias(
    tiny_checkpoint: Path, wanted: int, fused: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """In bfloat16 bias and logits are rounded, and 40 documents terms that were told were 39.8."""
    documents = [f"the {a} of a {b} is in the {c}" for a in WORDS for b in WORDS for c in WORDS[::4]]
    model = build_splade(tiny_checkpoint, device="cpu", fused=fused).bfloat16()
    with caplog.at_level(logging.WARNING):
        told = trim_documents(model, documents, wanted)
    assert told == pytest.approx(mean_active(model, documents), rel=1e-6)
    assert ("were wanted" in caplog.text) == (abs(told / wanted - 1) > 0.01)


def test_what_cannot_be_had_is_refused(tiny_splade: SparseEncoder, tiny_checkpoint: Path) -> None:
    """Each of these would leave another number than the one asked for, without a word."""
    size = len(tiny_splade.tokenizer)
    with pytest.raises(
        ValueError, match=rf"document_terms must lie between 0 and the {size} .* received 900"
    ):
        trim_documents(tiny_splade, DOCUMENTS, 900)
    with pytest.raises(ValueError, match="at least one document"):
        trim_documents(tiny_splade, [], 9)
    restrict_output_vocabulary(tiny_splade, range(30))
    most = len(DOCUMENTS) * (size - 30)
    message = f"{len(DOCUMENTS)} documents have {most} logits in all; wanted are {size - 20} per document"
    with pytest.raises(ValueError, match=message):
        trim_documents(tiny_splade, DOCUMENTS, size - 20)
    free = build_inference_free(tiny_splade, np.ones(size))
    with pytest.raises(ValueError, match=r"inference-free .* received query_terms=4"):
        check_terms_of_model(free, query_terms=4)
    assert trim_documents(free, DOCUMENTS, 9) == 9.0
    tiny_splade.max_active_dims = 5
    with pytest.raises(
        ValueError, match=r"max_active_dims=5\. Lift .* by `lexforge trim --max-active-dims 5`"
    ):
        check_terms_of_model(tiny_splade, document_terms=4)
    with pytest.raises(ValueError, match=r"lie below the model's max_active_dims=5: .* received 5"):
        trim_documents(tiny_splade, DOCUMENTS, 5)
    normalized = SparseEncoder(modules=[*encoder(tiny_checkpoint).children(), Normalize()], device="cpu")
    with pytest.raises(ValueError, match="received Normalize as the last one"):
        trim_documents(normalized, DOCUMENTS, 4)
    summed = encoder(tiny_checkpoint)
    summed[1].pooling_strategy = "sum"
    with pytest.raises(ValueError, match=r"needs SpladePooling\('max'\), .* received 'sum'"):
        trim_documents(summed, DOCUMENTS, 4)
    sides = [list(encoder(tiny_checkpoint).children()) for _ in range(2)]
    two = SparseEncoder(modules=[Router.for_query_document(*sides)], device="cpu")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="received a model with 2"):
        trim_documents(two, DOCUMENTS, 4)


def test_a_model_in_training_stays_in_training(tiny_splade: SparseEncoder) -> None:
    """It would go on without dropout, and learn something else in silence."""
    tiny_splade.train()
    document_levels(tiny_splade, DOCUMENTS, [4])
    assert all(module.training for module in tiny_splade.modules())


def test_a_decoder_without_a_bias_can_have_a_number_of_query_terms_only(tiny_splade: SparseEncoder) -> None:
    """The level of documents is written into the bias; the number of queries is a matter of training."""
    tiny_splade[0].model.get_output_embeddings().bias = None
    with pytest.raises(ValueError, match="no bias"):
        trim_documents(tiny_splade, DOCUMENTS, 4)
    check_terms_of_model(tiny_splade, query_terms=4)

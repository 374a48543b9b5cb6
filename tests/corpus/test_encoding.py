"""Texts to vectors: the rows of the model's own encoding, and a cache that knows when a model changed."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from scipy import sparse
from sentence_transformers import SentenceTransformer, SparseEncoder

from lexforge.common.samples import evenly_spaced
from lexforge.corpus import encoding
from lexforge.corpus.encoding import BATCHES_PER_BLOCK, CorpusEncoder, encode, encoding_speed
from lexforge.models.load import check_encoder, load_encoder

TEXTS = ["search index", "a", "sort the list of words in the file", "", "vector", "search index", "서울 검색"]
# Different texts of many lengths, of which batches of two make three blocks, the last of one text.
SEVERAL_BLOCKS = [
    f"{TEXTS[i % len(TEXTS)]} {'graph ' * (i % 5)}{i}" for i in range(2 * 2 * BATCHES_PER_BLOCK + 1)
]


@pytest.mark.parametrize("kind", ["query", "document"])
def test_sparse_rows_stand_in_the_order_of_the_texts(tiny_splade, kind: str) -> None:
    """Texts are sorted by length and cut into blocks: a row in the wrong place is another document's."""
    tiny_splade.prompts = {"query": "find ", "document": "text "}
    vectors = encode(tiny_splade, SEVERAL_BLOCKS, kind, batch_size=2)
    prefix = tiny_splade.prompts[kind]
    alone = torch.stack([tiny_splade.encode(prefix + text) for text in SEVERAL_BLOCKS]).to_dense().numpy()
    assert isinstance(vectors, sparse.csr_array)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors.toarray(), alone, rtol=1e-5, atol=1e-5)  # padding changes the sums


def test_dense_rows_stand_in_the_order_of_the_texts(tiny_dense) -> None:
    """As for sparse vectors."""
    vectors = encode(tiny_dense, SEVERAL_BLOCKS, "document", batch_size=2)
    alone = np.stack([tiny_dense.encode(text) for text in SEVERAL_BLOCKS])
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, alone, rtol=1e-5, atol=1e-5)  # padding changes the sums


@pytest.mark.parametrize("of", [np.array, lambda texts: Dataset.from_dict({"text": texts})["text"]])
def test_an_array_or_a_column_of_texts_is_encoded_as_a_list(of: Any, tiny_dense) -> None:
    """sentence-transformers takes them as well; the truth value of an array is an error of numpy."""
    texts = ["a long list of words to sort", "sort"]
    np.testing.assert_array_equal(
        encode(tiny_dense, of(texts), "document"), encode(tiny_dense, texts, "document")
    )


@pytest.mark.parametrize("name", ["tiny_splade", "tiny_dense"])
def test_bfloat16_gives_nearly_the_same_vectors(name: str, request, monkeypatch) -> None:
    """Faster products may round, and must not change which text a row belongs to."""
    monkeypatch.setattr(
        encoding, "multiplies_bfloat16", lambda: True
    )  # emulated elsewhere, which is exact too
    model = request.getfixturevalue(name)
    exact, fast = (encode(model, TEXTS, "document", precision=precision) for precision in ("fp32", "bf16"))
    assert fast.dtype == np.float32
    rows = [each.toarray() if name == "tiny_splade" else each for each in (exact, fast)]
    distances = np.linalg.norm(rows[0] - rows[1], axis=1) / np.linalg.norm(rows[0], axis=1)  # [texts]
    assert 0 < distances.max() < 0.02


def test_an_autocast_of_the_caller_stays(tiny_dense) -> None:
    """`model.encode` computes in bfloat16 there, and so must the default."""
    with torch.autocast("cpu", torch.bfloat16):
        vectors = encode(tiny_dense, TEXTS, "document", batch_size=len(TEXTS))
    assert np.abs(vectors - encode(tiny_dense, TEXTS, "document", batch_size=len(TEXTS))).max() > 1e-4


def test_a_precision_that_a_processor_lacks_is_refused(tiny_dense, monkeypatch) -> None:
    """Emulated products would take a hundred times as long."""
    with pytest.raises(ValueError, match=r"precision must be one of \('fp32', 'bf16'\); received 'fp16'"):
        encode(tiny_dense, TEXTS, "document", precision="fp16")
    monkeypatch.setattr(encoding, "multiplies_bfloat16", lambda: False)
    with pytest.raises(ValueError, match="no instructions for bfloat16"):
        encode(tiny_dense, TEXTS, "document", precision="bf16")


@pytest.mark.parametrize("most", [4, 5, 99])
def test_speed_is_measured_by_documents_of_the_whole_corpus(most: int, tiny_dense) -> None:
    """The first ones often have one source; of seven texts, four were the first four."""
    speed, vectors = encoding_speed(tiny_dense, TEXTS, most=most)
    chosen = [TEXTS[place] for place in evenly_spaced(len(TEXTS), most)]
    assert speed > 0
    assert (chosen[0], chosen[-1]) == (TEXTS[0], TEXTS[-1])
    np.testing.assert_array_equal(vectors, encode(tiny_dense, chosen, "document"))


def test_no_text_is_refused(tiny_dense) -> None:
    """No row has no width."""
    with pytest.raises(ValueError, match="at least one query is needed to encode; received none"):
        encode(tiny_dense, [], "query")


def test_what_cannot_be_encoded_is_refused_at_once(tiny_dense, tmp_path: Path, monkeypatch) -> None:
    """No batch, another class of model, a cache folder without a place: before an hour of encoding."""

    def refused(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    with pytest.raises(TypeError, match="expected a list of texts; received the single text 'sort'"):
        encode(tiny_dense, "sort", "query")  # whose characters would be encoded
    with pytest.raises(ValueError, match=r"kind must be one of \('query', 'document'\); received 'queries'"):
        encode(tiny_dense, ["sort"], "queries")  # with the prompt of documents
    with pytest.raises(ValueError, match="batch_size must be at least 1; received 0"):
        encode(tiny_dense, ["sort"], "query", batch_size=0)
    with pytest.raises(TypeError, match="SparseEncoder or a SentenceTransformer; received Linear"):
        encode(torch.nn.Linear(2, 2), TEXTS, "query")
    (tmp_path / "link").symlink_to(tmp_path / "missing")
    tiny_dense[0].register_forward_pre_hook(lambda *_: pytest.fail("it was encoded"))
    with pytest.raises(FileExistsError, match="link"):
        CorpusEncoder(TEXTS, 2, tmp_path / "link").encode(tiny_dense)
    monkeypatch.setattr("tempfile.TemporaryFile", refused)
    with pytest.raises(OSError, match="no file can be written"):
        CorpusEncoder(TEXTS, 2, tmp_path).encode(tiny_dense)


@pytest.mark.parametrize("vector_type", ["sparse", "dense"])
def test_a_vector_that_is_not_finite_is_refused(vector_type: str, tiny_splade, tiny_dense) -> None:
    """A damaged model must not encode and cache a whole corpus; the message names the text that shows it."""
    model = tiny_splade if vector_type == "sparse" else tiny_dense

    def overflow(module: torch.nn.Module, given: object, features: dict[str, torch.Tensor]) -> None:
        features["sentence_embedding"][1] = np.inf  # the second row; no weight is to blame

    model[-1].register_forward_hook(overflow)
    second = sorted(TEXTS, key=len, reverse=True)[1]
    with pytest.raises(ValueError, match=f"for the document {second!r}$"):
        encode(model, TEXTS, "document", batch_size=len(TEXTS))


def test_a_broken_weight_is_named(tiny_splade: SparseEncoder) -> None:
    """The text of the message is not to blame: a file of weights holds NaN after a run in half precision."""
    name, weight = next(one for one in tiny_splade.named_parameters() if one[0].endswith("dense.weight"))
    with torch.no_grad():
        weight[0, 0] = float("nan")
    with pytest.raises(ValueError, match=f"for the document 'sort .*', because its weight {name} holds NaN"):
        encode(tiny_splade, TEXTS, "document")


def test_the_model_decides_the_similarity(tiny_splade, tiny_dense) -> None:
    """A SPLADE model is searched by dot product unless it says otherwise; distances have no index."""
    assert check_encoder(tiny_splade) == "dot"
    assert check_encoder(tiny_dense) == "cosine"
    tiny_dense.similarity_fn_name = "manhattan"
    with pytest.raises(ValueError, match="received 'manhattan'"):
        check_encoder(tiny_dense)
    with pytest.raises(TypeError, match="received a Linear"):
        check_encoder(torch.nn.Linear(2, 2))


def test_kept_vectors_are_used_until_the_model_changes(tiny_splade) -> None:
    """An evaluation after the last step of training encodes nothing."""
    corpus = CorpusEncoder(TEXTS, 4)
    first, fresh = corpus.encode(tiny_splade)
    assert fresh
    again, fresh = corpus.encode(tiny_splade)
    assert again is first
    assert not fresh
    with torch.no_grad():
        next(iter(tiny_splade.parameters())).view(-1)[0] += 1e-6
    assert corpus.encode(tiny_splade)[1]


def test_vectors_of_an_autocast_are_kept_apart(tiny_dense, tmp_path: Path) -> None:
    """An evaluation within one took those that were kept in float32, or left its own to the next."""
    corpus = CorpusEncoder(TEXTS, len(TEXTS), tmp_path)
    exact, _ = corpus.encode(tiny_dense)
    with torch.autocast("cpu", torch.bfloat16):
        coarse, fresh = corpus.encode(tiny_dense)
        assert fresh
        assert np.abs(coarse - exact).max() > 1e-4
        assert not corpus.encode(tiny_dense)[1]
    again, fresh = corpus.encode(tiny_dense)
    assert not fresh, "they lie in the folder"
    np.testing.assert_array_equal(again, exact)


@pytest.mark.parametrize("vector_type", ["sparse", "dense"])
def test_vectors_outlive_the_process_in_a_folder(
    vector_type: str, tiny_splade, tiny_dense, tmp_path: Path
) -> None:
    """A second process with the same model and corpus reads them; another corpus does not."""
    model = tiny_splade if vector_type == "sparse" else tiny_dense
    first, _ = CorpusEncoder(TEXTS, 4, tmp_path).encode(model)
    second, fresh = CorpusEncoder(TEXTS, 4, tmp_path).encode(model)
    assert not fresh
    assert abs(first - second).max() == 0
    assert second.shape == first.shape
    assert CorpusEncoder([*TEXTS[1:], TEXTS[0]], 4, tmp_path).encode(model)[1]
    assert len(list(tmp_path.iterdir())) == 2


def test_what_a_killed_process_left_is_deleted_after_an_hour(tiny_splade, tmp_path: Path) -> None:
    """Before, the process may still be writing it; and a folder may hold other people's files."""
    for text, age, kept in (("a", 0, True), ("b", 2 * 3600, False)):
        CorpusEncoder([text], 4, tmp_path).encode(tiny_splade)
        (file,) = (path for path in tmp_path.iterdir() if path.suffix == ".safetensors")
        leftover = file.rename(tmp_path / f"{file.name}.12-{'ab' * 8}.partial")
        other = tmp_path / "other.partial"
        other.touch()
        for path in (leftover, other):
            os.utime(path, (time.time() - age, time.time() - age))
        CorpusEncoder([f"{text} again"], 4, tmp_path).encode(tiny_splade)
        assert (leftover.exists(), other.exists()) == (kept, True)
        for path in tmp_path.iterdir():
            path.unlink()


def test_vectors_whose_file_does_not_fit_on_the_disk_are_kept(tiny_splade, tmp_path, caplog) -> None:
    """They may be the work of hours, and only a later process needs the file."""
    resource = pytest.importorskip("resource", reason="only POSIX systems limit a process")
    corpus = CorpusEncoder(TEXTS, 4, tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        vectors, _ = corpus.encode(tiny_splade)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "File too large: " in caplog.text
    assert list(tmp_path.iterdir()) == []
    assert corpus.encode(tiny_splade) == (vectors, False)


def test_a_damaged_file_is_refused(tiny_splade, tmp_path: Path) -> None:
    """It is not encoded anew in silence: something else may be wrong with the disk."""
    CorpusEncoder(TEXTS, 4, tmp_path).encode(tiny_splade)
    (file,) = tmp_path.iterdir()
    data = bytearray(file.read_bytes())
    data[len(data) // 3] ^= 0xFF
    file.write_bytes(bytes(data))
    with pytest.raises(ValueError, match=r"cannot be read .* delete the file"):
        CorpusEncoder(TEXTS, 4, tmp_path).encode(tiny_splade)


@pytest.mark.parametrize("encoder", ["bare", "sparse", "dense"])
def test_every_kind_of_model_is_loaded(
    encoder, tiny_checkpoint, tiny_splade, tiny_dense, tmp_path: Path
) -> None:
    """The command lines take a checkpoint and saved encoders by one argument."""
    if encoder != "bare":
        (tiny_splade if encoder == "sparse" else tiny_dense).save_pretrained(str(tmp_path))
    model = load_encoder(str(tiny_checkpoint if encoder == "bare" else tmp_path), 9)
    assert type(model) is (SentenceTransformer if encoder == "dense" else SparseEncoder)
    assert model.max_seq_length == 9
    same = tiny_dense if encoder == "dense" else tiny_splade
    same.max_seq_length = 9
    difference = encode(model, TEXTS, "query") - encode(same, TEXTS, "query")
    assert abs(difference).max() < 1e-5  # the fused head sums in another order


@pytest.mark.parametrize("name", ["document", "passage", "corpus"])
def test_texts_are_encoded_with_the_prompt_that_was_saved(name: str, tiny_dense, tiny_splade) -> None:
    """The oracle is the plain encoding of prompt and text. sentence-transformers gives every model an empty
    prompt named "document", for which it passes over "passage".
    """
    for model in (tiny_dense, tiny_splade):
        expected = encode(model, ["search sort a list", "file sort a list"], "query")
        model.prompts |= {"query": "search ", name: "file "}
        for row, kind in enumerate(("query", "document")):
            found = encode(model, ["sort a list"], kind)
            difference = np.abs(np.asarray((found - expected[[row]]).max())).max()
            assert difference < 1e-5, kind  # float32, padded and not

"""Exports in the runtime of each target against stock sentence-transformers, and what is refused."""

from __future__ import annotations

import importlib.util
import json
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentence_transformers
import torch
from sentence_transformers import SparseEncoder
from sentence_transformers.base.modules import Dense
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import WordLevel
from transformers import AutoModel, AutoTokenizer, PreTrainedTokenizerFast

from lexforge.export import check_model_export, export_model
from lexforge.export.models import files, graphs, sides
from lexforge.export.models.check import SMALLEST_COSINE
from lexforge.export.models.onnx import write_pooled
from lexforge.export.models.opensearch import write_opensearch
from lexforge.models import (
    build_inference_free,
    build_splade,
    normalize_vectors,
    restrict_output_vocabulary,
    scale_head,
)

QUERIES = ["sort a list", "open file!", "café naïve search"]
DOCUMENTS = ["the index of a vector", "parse the tree and hash each key", "load", "batch of tokens " * 20]
FAMILIES = ("bert", "distilbert", "roberta", "xlm-roberta", "modernbert")
TOLERANCE = 2e-5  # float32 sums in another order, on weights up to about 5
ONNX = ("onnx", "onnx-pairs", "onnx-logits")
REST = ("onnx-pairs", "onnx-logits", "opensearch")


def expected(folder: Path, texts: list[str], kind: str = "document") -> np.ndarray:
    """The vectors that plain sentence-transformers gives, `[B, V]`."""
    model = SparseEncoder(str(folder), device="cpu")
    encode = model.encode_query if kind == "query" else model.encode_document
    return encode(texts, convert_to_sparse_tensor=False, show_progress_bar=False).numpy()


def export(folder: Path, target: Any, output: Path, **options: Any) -> Path:
    export_model(str(folder), target, output, queries=QUERIES, documents=DOCUMENTS, **options)
    return output


def onnx_outputs(folder: Path, texts: list[str], types: bool) -> list[np.ndarray]:
    """Run `model.onnx` with tokens of the original type of tokenizer, not of `tokenizer.json` alone."""
    import onnxruntime

    tokens = AutoTokenizer.from_pretrained(folder)(texts, padding=True, truncation=True, return_tensors="np")
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    assert ("token_type_ids" in names) == types
    zeros = np.zeros_like(tokens["input_ids"])
    return session.run(None, {name: tokens.get(name, zeros) for name in names})


@pytest.fixture(scope="module")
def bert_onnx(save_encoder: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(save_encoder(), "onnx", tmp_path_factory.mktemp("export") / "onnx")


def test_onnx_gives_the_vectors_of_the_encoder(save_encoder, bert_onnx: Path) -> None:
    """Who loads the file with onnxruntime must rank as sentence-transformers does, alone and in a batch."""
    for texts in (DOCUMENTS, DOCUMENTS[3:], ["a"]):
        (found,) = onnx_outputs(bert_onnx, texts, types=True)
        np.testing.assert_allclose(found, expected(save_encoder(), texts), atol=TOLERANCE)


def test_an_export_says_what_it_is_and_names_no_place(save_encoder, bert_onnx: Path) -> None:
    """A reader without lexforge needs length, similarity and sides; the exporter's folders are private."""
    description = json.loads((bert_onnx / "export.json").read_text())
    assert description["target"] == "onnx"
    assert description["limits"] == []
    assert description["opset"] == files.OPSET
    assert description["similarity"] == "dot"
    assert description["sides"]["."]["max_seq_length"] == 32
    assert [each["texts"] for each in description["compared_with_the_encoder"]] == [4, 5]
    tokenizer = json.loads((bert_onnx / "tokenizer.json").read_text())
    assert tokenizer["truncation"]["max_length"] == 32
    for path in bert_onnx.iterdir():
        assert str(save_encoder().parent).encode() not in path.read_bytes(), path


def test_pairs_are_the_terms_of_one_text(save_encoder, tmp_path: Path) -> None:
    """Anserini reads ids and weights of one query at a time, and sends token types to any model."""
    folder = export(save_encoder("distilbert"), "onnx-pairs", tmp_path / "out")
    terms = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")
    assert terms[:3] == ["[PAD]", "[UNK]", "[CLS]"]
    for text in QUERIES:
        indices, weights = onnx_outputs(folder, [text], types=True)
        (vector,) = expected(save_encoder("distilbert"), [text])
        np.testing.assert_array_equal(indices, np.flatnonzero(vector))
        np.testing.assert_allclose(weights, vector[indices], atol=TOLERANCE)


@pytest.mark.parametrize("target", ["elasticsearch", "onnx-pairs"])
def test_a_gap_in_the_ids_shifts_no_name(target: Any, save_encoder, tmp_path: Path) -> None:
    """A vocab.txt with a word twice, as some published ones have, makes a tokenizer that lacks an id."""
    source = shutil.copytree(save_encoder(), tmp_path / "model")
    whole = AutoTokenizer.from_pretrained(source)
    names = whole.convert_ids_to_tokens(list(range(len(whole))))
    content = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
    gap = content["model"]["vocab"].pop("j")
    assert gap < len(names) - 1
    (source / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    folder = export(source, target, tmp_path / "out")
    if target == "elasticsearch":
        found = json.loads((folder / "vocabulary.json").read_text(encoding="utf-8"))["vocabulary"]
    else:
        found = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    assert found == [*names[:gap], f"[{gap}]", *names[gap + 1 :]]


def test_logits_pooled_as_fastembed_does_are_the_vectors(save_encoder, tmp_path: Path) -> None:
    """fastembed applies log1p once; an encoder that applies it twice must come out right all the same."""
    source = save_encoder(activation="log1p_relu")
    folder = export(source, "onnx-logits", tmp_path / "out")
    (logits,) = onnx_outputs(folder, DOCUMENTS, types=True)
    lengths = [
        len(ids) for ids in AutoTokenizer.from_pretrained(folder)(DOCUMENTS, truncation=True)["input_ids"]
    ]
    for row, length, vector in zip(logits, lengths, expected(source, DOCUMENTS), strict=True):
        pooled = [np.log(1 + max(logit, 0)) for logit in row[:length].max(axis=0)]
        np.testing.assert_allclose(pooled, vector, atol=TOLERANCE)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    assert settings["model_max_length"] == 32  # where fastembed cuts
    # Where it is installed (make test-oldest), the export was compared by fastembed itself.
    runtime = json.loads((folder / "export.json").read_text())["compared_with_the_encoder"][0]["runtime"]
    assert (runtime == "fastembed") == (importlib.util.find_spec("fastembed") is not None)


@pytest.mark.parametrize("family", FAMILIES)
def test_opensearch_gets_named_vectors_without_special_tokens(
    family: str, save_encoder, tmp_path: Path
) -> None:
    """ml-commons reads `output` of a TorchScript file in a zip, whose size and hash it checks."""
    import hashlib

    source = save_encoder(family)
    folder = export(source, "opensearch", tmp_path / "out")
    settings = json.loads((folder / "ml-commons_model_config.json").read_text())
    archive = (folder / "model.zip").read_bytes()
    assert settings["function_name"] == "SPARSE_ENCODING"
    assert settings["model_content_size_in_bytes"] == len(archive)
    assert settings["model_content_hash_value"] == hashlib.sha256(archive).hexdigest()
    with zipfile.ZipFile(folder / "model.zip") as archive:
        assert sorted(archive.namelist()) == ["model.pt", "tokenizer.json"]
        archive.extractall(tmp_path / "unpacked")
    model = _load(tmp_path / "unpacked" / "model.pt")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for texts in (DOCUMENTS, ["a"]):
        tokens = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
        found = (
            model({name: tokens[name] for name in ("input_ids", "attention_mask")})["output"].detach().numpy()
        )
        vectors = expected(source, texts)
        vectors[:, tokenizer.all_special_ids] = 0
        np.testing.assert_allclose(found, vectors, atol=TOLERANCE)


@pytest.mark.parametrize("family", FAMILIES[:4])
def test_elasticsearch_reads_the_vector_at_the_first_position(
    family: str, save_encoder, tmp_path: Path
) -> None:
    """Elasticsearch takes `[0][0]` of the result; there eland's own export has the logits of one token."""
    source = save_encoder(family)
    folder = export(source, "elasticsearch", tmp_path / "out")
    model = _load(folder / "traced_pytorch_model.pt")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for text in DOCUMENTS:
        tokens = tokenizer([text], truncation=True, return_tensors="pt")
        ids, mask = tokens["input_ids"], tokens["attention_mask"]
        more = (torch.zeros_like(ids), torch.arange(ids.shape[1])[None]) if "bert" in family[:10] else ()
        found = model(ids, mask, *(more if family in ("bert", "distilbert") else ()))
        assert found.shape[:2] == (1, 1)
        np.testing.assert_allclose(found[0, 0].numpy(), expected(source, [text])[0], atol=TOLERANCE)
    settings = json.loads((folder / "config.json").read_text())
    (tokenizer_family,) = settings["inference_config"]["text_expansion"]["tokenization"]
    assert tokenizer_family == {"distilbert": "bert", "xlm-roberta": "xlm_roberta"}.get(family, family)
    (limit,) = json.loads((folder / "export.json").read_text())["limits"]
    assert limit.startswith("Experimental: these files were compared with the documentation of Elasticsearch")
    vocabulary = json.loads((folder / "vocabulary.json").read_text(encoding="utf-8"))
    assert vocabulary["vocabulary"] == tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    assert set(vocabulary) - {"vocabulary"} == {"roberta": {"merges"}, "xlm_roberta": {"scores"}}.get(
        tokenizer_family, set()
    )


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES[1:])
@pytest.mark.parametrize("target", ONNX)
def test_every_family_has_its_onnx(target: str, family: str, save_encoder, tmp_path: Path) -> None:
    """Attention masks are built differently in each family, and a trace may freeze a length."""
    source = save_encoder(family)
    folder = export(source, target, tmp_path / "out")
    for text in [*DOCUMENTS, "a"]:
        found = onnx_outputs(folder, [text], types=target == "onnx-pairs")
        (vector,) = expected(source, [text])
        if target == "onnx-pairs":
            np.testing.assert_allclose(found[1], vector[found[0]], atol=TOLERANCE)
        pooled = {"onnx": found[0], "onnx-logits": np.log1p(np.maximum(found[0], 0))[0].max(axis=0)}
        if target in pooled:
            np.testing.assert_allclose(pooled[target].ravel(), vector, atol=TOLERANCE)


@pytest.fixture(scope="module")
def inference_free(save_encoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Queries are looked up in a table of different weights."""
    encoder = SparseEncoder(str(save_encoder()), device="cpu")
    size = len(encoder.tokenizer)
    model = build_inference_free(encoder, np.linspace(0, 4, size))
    folder = tmp_path_factory.mktemp("inference-free") / "model"
    model.save_pretrained(str(folder))
    return folder


def test_opensearch_gets_both_sides_of_an_inference_free_encoder(
    inference_free: Path, tmp_path: Path
) -> None:
    """A query is a lookup by the text of each token, in which a missing term would weigh 1."""
    folder = export(inference_free, "opensearch", tmp_path / "out")
    settings = json.loads((folder / "query" / "ml-commons_model_config.json").read_text())
    assert settings["function_name"] == "SPARSE_TOKENIZE"
    with zipfile.ZipFile(folder / "query" / "model.zip") as archive:
        idf = json.loads(archive.read("idf.json"))
    tokenizer = AutoTokenizer.from_pretrained(folder / "query")
    (vector,) = expected(inference_free, ["sort a list sort"], "query")
    weights = sorted(idf[token] for token in ("sort", "a", "list"))
    assert weights == pytest.approx(sorted(vector[vector > 0]))
    words = set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens)
    assert set(idf) == words
    assert min(idf.values()) > 0
    assert (folder / "document" / "model.zip").is_file()


@pytest.mark.parametrize("weight", [2.0, 0.5])
def test_opensearch_takes_terms_of_one_text_only_with_one_weight(weight: float, tmp_path: Path) -> None:
    """Its table has one weight a text, so one of two weights would be lost in silence."""
    vocabulary = {"[PAD]": 0, "\u2581cat": 1, "cat": 2, "\u2581dog": 3}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[PAD]"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    side = sides.LookupSide(
        "",
        ("query",),
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]"),
        32,
        None,
        {"query": ""},
        False,
        4,
        torch.tensor([0.0, 2.0, weight, 0.0]),
    )
    if weight != 2:
        with pytest.raises(ValueError, match=r"several terms 'cat', of the weights 2\.0 and 0\.5"):
            write_opensearch(side, tmp_path, "name")
        return
    write_opensearch(side, tmp_path, "name")
    with zipfile.ZipFile(tmp_path / "model.zip") as archive:
        assert json.loads(archive.read("idf.json")) == {"cat": 2.0, "dog": 1e-6}


def test_elasticsearch_adds_no_special_tokens_to_looked_up_queries(
    inference_free: Path, tmp_path: Path
) -> None:
    """They would take the places of the last two words of a long query."""
    folder = export(inference_free, "elasticsearch", tmp_path / "out")
    for side in ("query", "document"):
        settings = json.loads((folder / side / "config.json").read_text())
        options = settings["inference_config"]["text_expansion"]["tokenization"]["bert"]
        assert options["with_special_tokens"] == (side == "document")


def test_elasticsearch_is_refused_where_a_roberta_tokenizer_normalizes(save_encoder, tmp_path: Path) -> None:
    """Elasticsearch would cut each text as it stands, which the comparison of the export cannot see."""
    source = shutil.copytree(save_encoder("roberta"), tmp_path / "model")
    content = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
    content["normalizer"] = {"type": "Lowercase"}
    (source / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ValueError, match=r"without a normalizer; .* has one of the type Lowercase"):
        export(source, "elasticsearch", tmp_path / "out")


@pytest.mark.parametrize("target", ["onnx", pytest.param("onnx-logits", marks=pytest.mark.slow)])
def test_onnx_has_both_sides_of_an_inference_free_encoder(
    target: Any, inference_free: Path, tmp_path: Path
) -> None:
    """The comparison inside the export covers both; here the table is read by hand."""
    folder = export(inference_free, target, tmp_path / "out")
    (vector,) = expected(inference_free, ["sort a list sort"], "query")
    if target == "onnx":
        (found,) = onnx_outputs(folder / "query", ["sort a list sort"], types=False)
        np.testing.assert_allclose(found[0], vector, atol=1e-6)
        return
    idf = json.loads((folder / "idf.json").read_text(encoding="utf-8"))
    assert sorted(idf[token] for token in ("sort", "a", "list")) == pytest.approx(sorted(vector[vector > 0]))
    # fastembed applies log1p twice to documents of inference-free encoders.
    (logits,) = onnx_outputs(folder, DOCUMENTS[:1], types=True)
    twice = np.log1p(np.log1p(np.maximum(logits[0], 0))).max(axis=0)
    np.testing.assert_allclose(twice, expected(inference_free, DOCUMENTS[:1])[0], atol=TOLERANCE)


@pytest.fixture(scope="module")
def headless(save_encoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SPLADE encoder that was made of a transformer without a head, as one of all-MiniLM-L6-v2 is."""
    folder = tmp_path_factory.mktemp("headless")
    checkpoint = save_encoder().parent / "checkpoint"
    AutoModel.from_pretrained(checkpoint).save_pretrained(folder / "bare")
    AutoTokenizer.from_pretrained(checkpoint).save_pretrained(folder / "bare")
    model = build_splade(folder / "bare", max_seq_length=32, fused=False, device="cpu")
    assert [type(module) for module in model][1] is Dense
    scale_head(model, DOCUMENTS, active_terms=8).save_pretrained(str(folder / "model"))
    return folder / "model"


@pytest.mark.parametrize(
    "target", ["elasticsearch", *(pytest.param(name, marks=pytest.mark.slow) for name in ("onnx", *REST))]
)
def test_an_encoder_that_was_made_of_a_dense_one_is_exported(
    target: Any, headless: Path, tmp_path: Path
) -> None:
    """all-MiniLM, bge, e5 and gte are what people train from; the export is compared with the encoder."""
    folder = export(headless, target, tmp_path / "out")
    compared = json.loads((folder / "export.json").read_text())["compared_with_the_encoder"]
    assert [each["texts"] for each in compared] == [4, 5]
    if target == "onnx":
        (found,) = onnx_outputs(folder, DOCUMENTS, types=True)
        vectors = expected(headless, DOCUMENTS)
        assert 0 < np.count_nonzero(vectors) < vectors.size
        np.testing.assert_allclose(found, vectors, atol=TOLERANCE)


def test_an_encoder_of_an_older_sentence_transformers_is_exported(save_encoder, tmp_path: Path) -> None:
    """Such a model names the class MLMTransformer, and was refused. One in half precision is told."""
    folder = save_encoder("bert")
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["type"] = "sentence_transformers.sparse_encoder.models.MLMTransformer"
    SparseEncoder(str(folder), device="cpu").bfloat16().save_pretrained(str(tmp_path / "old"))
    (tmp_path / "old" / "modules.json").write_text(json.dumps(modules))
    description = json.loads(
        (export(tmp_path / "old", "opensearch", tmp_path / "out") / "export.json").read_text()
    )
    assert any("saved in bfloat16" in sentence for sentence in description["limits"])


def test_lengths_that_differ_by_the_kind_of_text_are_refused(save_encoder, tmp_path: Path) -> None:
    """One graph cuts both; the check said only that the vectors differ."""
    model = SparseEncoder(str(save_encoder("bert")), device="cpu")
    model[0].query_length = 6
    model.save_pretrained(str(tmp_path / "lengths"))
    if SparseEncoder(str(tmp_path / "lengths"))[0].query_length != 6:
        pytest.skip("this sentence-transformers has no length of queries")
    with pytest.raises(ValueError, match="cuts queries and documents after the same number of tokens"):
        export(tmp_path / "lengths", "onnx", tmp_path / "out")


def test_a_dense_layer_that_does_more_than_decode_is_refused(headless: Path, tmp_path: Path) -> None:
    """A graph without the activation would give other vectors; the message names the layer."""
    model = SparseEncoder(str(headless), device="cpu")
    model[1].activation_function = torch.nn.Tanh()
    model.save_pretrained(str(tmp_path / "model"))
    with pytest.raises(ValueError, match=r"without an activation and a residual; received Dense"):
        export(tmp_path / "model", "onnx", tmp_path / "out")


def test_a_restricted_vocabulary_stays_restricted(save_encoder, tmp_path: Path) -> None:
    """The restriction is a bias; a graph that left the bias out would bring banned terms back."""
    model = SparseEncoder(str(save_encoder()), device="cpu")
    banned = list(range(10, 40))
    assert expected(save_encoder(), DOCUMENTS)[:, banned].any()
    restrict_output_vocabulary(model, banned).save_pretrained(str(tmp_path / "model"))
    folder = export(tmp_path / "model", "elasticsearch", tmp_path / "out")
    ids = torch.randint(5, 40, (2, 9))
    found = _load(folder / "traced_pytorch_model.pt")(ids, torch.ones_like(ids), ids * 0, ids * 0)
    assert not found[..., banned].any()
    assert found.any()


@pytest.mark.parametrize(("pooling", "limit"), [("sum", None), ("max", 3)])
def test_sums_and_limits_of_terms_are_exported(
    pooling: str, limit: int | None, save_encoder, tmp_path: Path
) -> None:
    """The encoder may sum over tokens, or keep its largest weights only; so must the graph."""
    if limit is not None and sentence_transformers.__version__ == "6.0.0":
        pytest.skip("sentence-transformers 6.0.0 does not save max_active_dims")
    model = SparseEncoder(str(save_encoder(pooling=pooling)), device="cpu", max_active_dims=limit)
    model.save_pretrained(str(tmp_path / "model"))
    folder = export(tmp_path / "model", "elasticsearch", tmp_path / "out")
    tokens = AutoTokenizer.from_pretrained(folder)([DOCUMENTS[1]], return_tensors="pt")
    ids, mask = tokens["input_ids"], tokens["attention_mask"]
    found = _load(folder / "traced_pytorch_model.pt")(ids, mask, ids * 0, ids * 0)[0, 0]
    np.testing.assert_allclose(found, expected(tmp_path / "model", [DOCUMENTS[1]])[0], atol=1e-4)
    if limit is not None:
        assert int((found != 0).sum()) == limit
    with pytest.raises(ValueError, match="fastembed"):
        export(tmp_path / "model", "onnx-logits", tmp_path / "logits")


def test_unit_length_is_exported_or_refused(save_encoder, tmp_path: Path) -> None:
    """An encoder of a cosine preset is normalised for engines that know dot products only."""
    model = SparseEncoder(str(save_encoder()), device="cpu", similarity_fn_name="cosine")
    normalize_vectors(model).save_pretrained(str(tmp_path / "model"))
    folder = export(tmp_path / "model", "elasticsearch", tmp_path / "out")
    ids = torch.tensor([[2, 7, 9, 3]])
    found = _load(folder / "traced_pytorch_model.pt")(ids, torch.ones_like(ids), ids * 0, ids * 0)
    assert float(found.norm()) == pytest.approx(1, abs=1e-5)
    with pytest.raises(ValueError, match="unit length"):
        export(tmp_path / "model", "onnx-logits", tmp_path / "logits")


def test_eight_bits_are_smaller_and_near(save_encoder, bert_onnx: Path, tmp_path: Path) -> None:
    """The file that is left is the 8-bit one alone, and its vectors point the same way."""
    folder = export(save_encoder(), "onnx", tmp_path / "out", quantize="int8")
    import onnx

    types = {each.data_type for each in onnx.load(folder / "model.onnx").graph.initializer if each.dims[1:]}
    assert onnx.TensorProto.INT8 in types
    (found,) = onnx_outputs(folder, DOCUMENTS, types=True)
    vectors = expected(save_encoder(), DOCUMENTS)
    cosine = (found * vectors).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(vectors, axis=1)
    assert cosine.min() > SMALLEST_COSINE
    assert not np.allclose(found, vectors, atol=TOLERANCE)
    assert {path.name for path in folder.iterdir()} == {path.name for path in bert_onnx.iterdir()}


def test_large_weights_stand_beside_the_graph(inference_free, monkeypatch, tmp_path: Path) -> None:
    """A protobuf file holds 2 GiB; the limit is lowered here instead of making such a model."""
    monkeypatch.setattr(files, "EXTERNAL_BYTES", 100)
    query, _ = sides.read_sides(build_splade(inference_free, fused=False, device="cpu"))
    assert isinstance(query, sides.LookupSide)
    table = torch.rand(5000)
    written = write_pooled(replace(query, weights=table, vocabulary_size=len(table)), tmp_path / "query")
    assert (tmp_path / "query" / "model.onnx.data").stat().st_size >= 4 * len(table)
    assert (tmp_path / "query" / "model.onnx").stat().st_size < 4 * len(table)
    ids = query.tokenizer(QUERIES[0], add_special_tokens=False)["input_ids"]
    expected = [table[index].item() if index in ids else 0.0 for index in range(len(table))]
    np.testing.assert_allclose(written.load()(QUERIES[:1])[0], expected, atol=1e-6)


def test_an_export_that_differs_is_refused_and_leaves_nothing(
    save_encoder, monkeypatch, tmp_path: Path
) -> None:
    """A wrong file is worse than none: nobody sees from outside that the weights are those of a bug."""
    forward = graphs.TokenLogits.forward

    def wrong(self: Any, *tokens: Any) -> torch.Tensor:
        return forward(self, *tokens) * 1.001

    monkeypatch.setattr(graphs.TokenLogits, "forward", wrong)
    with pytest.raises(ValueError, match=r"refused, because it differs.*\d query texts"):
        export(save_encoder(), "opensearch", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_prompts_reach_the_engine_or_are_refused(save_encoder, tmp_path: Path) -> None:
    """Elasticsearch has a place for them; OpenSearch has none and would search without them in silence."""
    prompts = {"query": "sort ", "document": "the "}
    model = SparseEncoder(str(save_encoder()), device="cpu", prompts=prompts)
    model.save_pretrained(str(tmp_path / "model"))
    folder = export(tmp_path / "model", "elasticsearch", tmp_path / "out")
    settings = json.loads((folder / "config.json").read_text())
    assert settings["prefix_strings"] == {"search": "sort ", "ingest": "the "}
    model.prompts["query"], model.default_prompt_name = "", "document"  # blank: queries have no prompt
    model.save_pretrained(str(tmp_path / "blank"))
    folder = export(tmp_path / "blank", "elasticsearch", tmp_path / "of-documents")
    assert json.loads((folder / "config.json").read_text())["prefix_strings"] == {"ingest": "the "}
    with pytest.raises(ValueError, match="adds prompts"):
        export(tmp_path / "model", "opensearch", tmp_path / "none")


def test_bad_requests_are_refused_before_any_work(
    save_encoder, tiny_dense, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """Tracing takes minutes for a large model; a typing error must not."""
    model, used = str(save_encoder()), tmp_path / "used"
    used.mkdir()
    (used / "file").touch()
    tiny_dense.save_pretrained(str(tmp_path / "dense"))
    for arguments, message in [
        ((model, "tensorrt", tmp_path / "out"), "target must be one of .*received 'tensorrt'"),
        ((model, "onnx", tmp_path / "out", "int4"), "quantize must be one of .*received 'int4'"),
        ((model, "opensearch", tmp_path / "out", "int8"), "only ONNX targets are quantized"),
        ((str(tmp_path / "dense"), "onnx", tmp_path / "out"), "is a dense model"),
    ]:
        with pytest.raises(ValueError, match=message):
            check_model_export(*arguments)  # type: ignore[arg-type]
    with pytest.raises(FileExistsError, match="not an empty directory"):
        check_model_export(model, "onnx", used)
    with pytest.raises(FileNotFoundError, match="there is no model at"):
        check_model_export(str(tmp_path / "nothing"), "onnx", tmp_path / "out")
    # The tests' common tokenizer keeps accents, which Elasticsearch does not.
    with pytest.raises(ValueError, match=r"strips accents.*strip_accents=False"):
        export(tiny_checkpoint, "elasticsearch", tmp_path / "out")
    with pytest.raises(ValueError, match=r"cuts texts as BERT.*the type BPE"):
        export(save_encoder("modernbert"), "elasticsearch", tmp_path / "out")


def _load(path: Path) -> Any:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of TorchScript, the format that engines load
        return torch.jit.load(path).eval()

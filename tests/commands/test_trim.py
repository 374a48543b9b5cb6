"""Trimming from the command line: what is saved, what is measured, and refusals before any work."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from beir_folders import write_beir, write_lines
from huggingface_hub import ModelCard
from sentence_transformers import SparseEncoder

from lexforge import cli, data
from lexforge.commands import trim
from lexforge.commands.index import read_library
from lexforge.corpus import encode
from lexforge.models import decoder_biases, load_encoder
from lexforge.settings import SourceOptions

WORDS = "list array search index query document vector sparse token model train file graph tree".split()
CORPUS = {
    f"d{n}": f"the {a} of a {b} in the {c}"
    for n, (a, b, c) in enumerate(zip(WORDS, WORDS[3:] + WORDS[:3], WORDS[5:] + WORDS[:5], strict=True))
}
QUERIES = {f"q{n}": f"{a} {b}" for n, (a, b) in enumerate(zip(WORDS, WORDS[3:], strict=False))}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    splits = {"dev": range(8), "test": range(8, 11)}
    qrels = {split: {f"q{n}": {f"d{n}": 1} for n in numbers} for split, numbers in splits.items()}
    return write_beir(tmp_path / "data", CORPUS, QUERIES, qrels)


@pytest.fixture
def model(tiny_splade: SparseEncoder, tmp_path: Path) -> Path:
    tiny_splade.save_pretrained(str(tmp_path / "model"), create_model_card=False)
    return tmp_path / "model"


def config(model: Path, folder: Path, output: Path, /, **changes: Any) -> trim.Config:
    return trim.Config(**{
        "model": str(model), "document_terms": 9, "documents": str(folder), "output": output, **changes
    })  # fmt: skip


def vectors(model: SparseEncoder) -> list[torch.Tensor]:
    options: dict[str, Any] = {"convert_to_sparse_tensor": False}
    queries, documents = list(QUERIES.values()), list(CORPUS.values())
    return [model.encode_query(queries, **options), model.encode_document(documents, **options)]


@pytest.mark.parametrize(("limit", "option"), [(None, None), (12, None), (20, 12)])
def test_plain_sentence_transformers_loads_the_trimmed_model(
    model: Path,
    folder: Path,
    tmp_path: Path,
    limit: int | None,
    option: int | None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It has the wanted number of terms, and the vectors that the fused head here gives."""
    if limit is not None:
        settings = json.loads((model / "config_sentence_transformers.json").read_text())
        settings["max_active_dims"] = limit
        (model / "config_sentence_transformers.json").write_text(json.dumps(settings))
    trim.main(config(model, folder, tmp_path / "out", max_active_dims=option))
    plain, ours = SparseEncoder(str(tmp_path / "out"), device="cpu"), load_encoder(str(tmp_path / "out"))
    assert plain.max_active_dims == (option or limit)
    assert max(int((rows > 0).sum(1).max()) for rows in vectors(plain)) <= (option or limit or 10**6)
    for theirs, own in zip(vectors(plain), vectors(ours), strict=True):
        torch.testing.assert_close(theirs, own, rtol=1e-5, atol=1e-6)  # summed in another order
    documents = vectors(plain)[1]
    assert float((documents > 0).sum(1).float().mean()) == pytest.approx(9, abs=1 / len(CORPUS))
    start = SparseEncoder(str(model), device="cpu")  # with its own limit, and not with the new one
    before = float((vectors(start)[1] > 0).sum(1).float().mean())
    found = json.loads((tmp_path / "out" / "trim.json").read_text())
    assert found["terms"] == {"document": {"before": pytest.approx(before), "after": 9.0}}
    assert found["curve"] == []
    assert found["counted"] == {"documents": 14, "of": 14}
    out = capsys.readouterr().out
    assert f"terms per document: {before:.1f} before, 9.0 after" in out
    assert "terms per query" not in out
    assert not (tmp_path / "out" / "trim.svg").exists()


def test_a_limit_is_measured_against_the_model_without_it(model: Path, folder: Path, tmp_path: Path) -> None:
    """What the limit cost was told as what the model had before."""
    points = []
    for limit in (None, 10):
        cfg = config(
            model, folder, tmp_path / f"{limit}", data=str(folder), curve=(4,), max_active_dims=limit
        )
        trim.main(cfg)
        found = json.loads((cfg.output / "trim.json").read_text())["curve"]
        points.append({point["setting"]: point["measures"]["query_active_dims"] for point in found})
    assert points[0]["as it is"] == points[1]["as it is"] > 10 >= points[1]["limited"]


def test_judged_queries_give_a_table_a_drawing_and_numbers(
    model: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same points in all three, and the trimmed model is one of them."""
    cfg = config(model, folder, tmp_path / "out", data=str(folder), curve=(4, 9, 100), document_terms=9)
    trim.main(cfg)
    found = json.loads((tmp_path / "out" / "trim.json").read_text())
    points = {(point["setting"], point["wanted"]): point for point in found["curve"]}
    assert [key for key in points if key[0] == "level"] == [("level", 4), ("level", 9), ("level", 100)]
    assert points["level", 9]["value"] == found["level"]
    after = SparseEncoder(str(tmp_path / "out"), device="cpu")
    queries = (vectors(after)[0][:8] > 0).sum(1).float().mean()  # those of dev
    assert points["level", 9]["measures"]["query_active_dims"] == pytest.approx(float(queries))
    assert found["terms"]["query"]["after"] == pytest.approx(float(queries))
    assert found["terms"]["query"]["before"] > float(queries)
    out = capsys.readouterr().out
    for (setting, wanted), point in points.items():
        label = setting if wanted is None else f"{setting} {wanted}"
        line = next(line for line in out.splitlines() if line.startswith(f"{label} "))
        assert f"{point['measures']['nDCG@10']:.4f}" in line
    assert "dev: 8 queries" in out
    drawn = ElementTree.parse(tmp_path / "out" / "trim.svg").getroot()
    lines = list(drawn.iter("{http://www.w3.org/2000/svg}polyline"))
    assert [len(line.attrib["points"].split()) for line in lines] == [3, 3, 2] * 2  # no threshold gives 100
    assert found["config"]["curve"] == [4, 9, 100]


def test_a_largest_number_below_the_mean_is_refused(model: Path, folder: Path, tmp_path: Path) -> None:
    """No level gives a mean of nine to texts of at most nine terms."""
    with pytest.raises(ValueError, match=r"must be above --document-terms 9, .* received 9"):
        trim.main(config(model, folder, tmp_path / "out", max_active_dims=9))


def test_idf_shifts_the_bias_before_the_level_is_found(model: Path, folder: Path, tmp_path: Path) -> None:
    """Terms of many documents fall, and rare ones rise; documents have the wanted number all the same."""
    trim.main(config(model, folder, tmp_path / "out", data=str(folder), curve=(4,), idf_bias=0.3))
    found = json.loads((tmp_path / "out" / "trim.json").read_text())
    before, after = (SparseEncoder(str(place), device="cpu") for place in (model, tmp_path / "out"))
    documents = vectors(before)[1] > 0
    idf = ((len(CORPUS) + 1) / (documents.sum(0) + 0.5)).log()
    mean = (idf * documents.sum(0)).sum() / documents.sum()
    expected = 0.3 * (idf - mean).clamp(max=2) - found["level"]
    (old,), (new,) = decoder_biases(before), decoder_biases(after)
    torch.testing.assert_close(new / found["scale"] - old, expected)
    assert found["scale"] > 1
    assert found["terms"]["document"]["before"] == pytest.approx(float(documents.sum(1).float().mean()))
    assert float((vectors(after)[1] > 0).sum(1).float().mean()) == pytest.approx(9, abs=1 / len(CORPUS))
    points = [(point["setting"], point["wanted"]) for point in found["curve"]]
    assert points[:3] == [("as it is", None), ("shifted by idf", None), ("level", 4)]
    terms = [point["measures"]["document_active_dims"] for point in found["curve"]]
    assert terms[0] == pytest.approx(found["terms"]["document"]["before"])
    assert terms[1] != pytest.approx(terms[0])
    assert "shifted by 0.3 times its idf" in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize("bias", [-0.1, float("nan"), float("inf")])
def test_a_wrong_shift_is_refused_before_the_model_is_loaded(tmp_path: Path, bias: float) -> None:
    """By what was received."""
    with pytest.raises(ValueError, match=f"--idf-bias .* received {bias}"):
        trim.main(config(tmp_path / "none", tmp_path / "data", tmp_path / "out", idf_bias=bias))


def test_the_split_is_dev_unless_another_one_is_named(
    model: Path, folder: Path, tmp_path: Path, capsys
) -> None:
    """Nobody may choose a number of terms on test without having said so."""
    trim.main(config(model, folder, tmp_path / "out", data=str(folder), split="test", curve=(4,)))
    assert "test: 3 queries" in capsys.readouterr().out
    (folder / "qrels" / "dev.tsv").unlink()
    with pytest.raises(ValueError, match=r"dev.*test"):
        trim.main(config(model, folder, tmp_path / "other", data=str(folder)))
    assert not (tmp_path / "other").exists()


def test_a_large_corpus_is_sampled(model: Path, folder: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    """The same documents each time, and the line says how many of how many."""
    monkeypatch.setattr(trim, "SAMPLE", 6)
    for name in ("one", "two"):
        trim.main(config(model, folder, tmp_path / name))
        assert "counted on 6 of 14 documents" in capsys.readouterr().out
    one, two = (json.loads((tmp_path / name / "trim.json").read_text()) for name in ("one", "two"))
    assert one["level"] == two["level"]
    cfg = config(model, folder, tmp_path / "out")
    sample, total = trim.drawn_documents(cfg, load_encoder(str(model)))
    places = [list(CORPUS.values()).index(text) for text in sample]
    assert places == sorted(places)
    assert total == 14
    assert places != list(range(6))  # not the first ones


def test_the_columns_of_judged_data_are_no_columns_of_the_documents(
    model: Path, folder: Path, tmp_path: Path
) -> None:
    """A column that --data needs by name was looked for in --documents too, and refused there."""
    documents, judged = tmp_path / "documents.csv", tmp_path / "rows.csv"
    documents.write_text("\n".join(["id,text", *(f"{key},{text}" for key, text in CORPUS.items())]))
    judged.write_text("frage,antwort\nask,answer\n")
    columns = SourceOptions(query_column="frage", positive_column="antwort")
    cfg = config(model, folder, tmp_path / "out", documents=str(documents), data=str(judged), source=columns)
    drawn, total = trim.drawn_documents(cfg, load_encoder(str(model)))
    assert sorted(drawn) == sorted(CORPUS.values())
    assert total == len(CORPUS)


def test_documents_that_the_model_does_not_know_are_told(model: Path, tmp_path: Path, capsys) -> None:
    """The level follows from one unknown token; `lexforge index` and `adapt` told it, and this did not."""
    rows = [{"id": f"d{n}", "text": "\N{GRINNING FACE} " * (n + 1)} for n in range(4)]
    write_lines(tmp_path / "emoji.jsonl", rows)
    for passages in (False, True):
        cfg = config(model, tmp_path / "emoji.jsonl", tmp_path / "out", passages=passages)
        trim.drawn_documents(cfg, load_encoder(str(model)))
        assert capsys.readouterr().out.count("100.0% of the tokens are unknown to the model") == 1
    trim.drawn_documents(
        config(model, write_beir(tmp_path / "known", CORPUS, {}, {}), tmp_path), load_encoder(str(model))
    )
    assert "unknown" not in capsys.readouterr().out


def test_passages_of_long_documents_are_counted_and_searched(
    model: Path, folder: Path, tmp_path: Path, capsys
) -> None:
    """An index holds passages; the beginnings of long documents have more terms than these on average."""
    texts = list(CORPUS.values())
    long = {key: f".\n\n{key} ".join(texts[place:][:5]) for place, key in enumerate(CORPUS)}
    write_lines(folder / "corpus.jsonl", [{"_id": key, "text": text} for key, text in long.items()])
    cfg = config(
        model, folder, tmp_path / "out", passages=True, max_seq_length=24, data=str(folder), curve=(4,)
    )
    trim.main(cfg)
    encoder = load_encoder(str(tmp_path / "out"))
    passages = read_library(str(folder), cfg.source, encoder).texts
    assert len(passages) > len(long)
    vectors = encode(encoder, list(passages.values()), "document")
    assert vectors.nnz / len(passages) == pytest.approx(9, abs=0.1)
    out = capsys.readouterr().out
    assert f"of {len(passages)} passages" in out
    found = json.loads((tmp_path / "out" / "trim.json").read_text())
    (level,) = [p for p in found["curve"] if p["setting"] == "level" and p["wanted"] == 9]
    assert level["measures"]["document_active_dims"] == pytest.approx(9, abs=0.1)
    assert found["curve"][0]["measures"]["R@100"] == 1, "documents are found by their passages"


def test_the_curve_ends_where_the_model_does(tiny_splade: SparseEncoder, tmp_path: Path) -> None:
    """A limit of the model, or a small vocabulary, must not make the defaults fail."""
    cfg = config(tmp_path, tmp_path, tmp_path / "out", document_terms=24)
    assert len(tiny_splade.tokenizer) > 96
    assert trim.numbers_of_curve(cfg, tiny_splade) == [
        n for n in (16, 32, 48, 64, 96, 128) if n < len(tiny_splade.tokenizer)
    ]
    tiny_splade.max_active_dims = 48
    assert trim.numbers_of_curve(cfg, tiny_splade) == [16, 32]
    given = config(tmp_path, tmp_path, tmp_path / "out", document_terms=24, curve=(64, 24, 64))
    assert trim.numbers_of_curve(given, tiny_splade) == [
        64
    ]  # which is refused, because the user has asked for it


def test_the_card_says_what_was_done_and_keeps_that_of_the_model(
    model: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results of the model before must not stand as those of the trimmed one; its licence still holds. Paths
    of this machine are nobody's business.
    """
    head = "license: mit\nmodel-index:\n- name: old\n  results:\n  - task:\n      type: text-retrieval\n"
    head += "    dataset:\n      type: d\n      name: d\n    metrics:\n    - type: ndcg\n      value: 0.7\n"
    (model / "README.md").write_text(f"---\n{head}---\n# Old\n\nIts card.\n")
    words = ["python", "-m", "lexforge", "trim", str(model), "--output", str(tmp_path / "out")]
    monkeypatch.setattr("sys.orig_argv", words)
    trim.main(config(model, folder, tmp_path / "out", data=str(folder), curve=(4,)))
    text = (tmp_path / "out" / "README.md").read_text()
    card = ModelCard(text)
    assert card.data.license == "mit"
    assert card.data.eval_results is None
    assert "lexforge" in card.data.tags
    for part in ("# out\n", "9.0 active terms on average, 9 were wanted", "14 documents of data", "# Old\n"):
        assert part in text
    assert "-m lexforge trim model --output out" in text
    assert "On the split `dev` of data" in text
    assert "](trim.svg)" in text
    assert str(tmp_path) not in text


def test_a_model_without_a_card_gets_one(model: Path, folder: Path, tmp_path: Path) -> None:
    """The hub needs its tags to load the model as what it is. That of each run was called `model`."""
    (tmp_path / "tuned").mkdir()
    (tmp_path / "tuned" / "env.json").write_text("{}")
    model.rename(tmp_path / "tuned" / "model")
    trim.main(config(tmp_path / "tuned", folder, tmp_path / "out"))
    card = ModelCard.load(tmp_path / "out" / "README.md")
    assert card.data.library_name == "sentence-transformers"
    assert {"sparse-encoder", "lexforge"} <= set(card.data.tags)
    assert "This is tuned with another number of terms" in card.text
    assert "follows" not in card.text


def test_an_inference_free_model_is_trimmed_on_the_side_of_its_documents(
    tiny_splade: SparseEncoder, folder: Path, tmp_path: Path
) -> None:
    """Its saved queries stay as they are."""
    from lexforge.models import build_inference_free

    free = build_inference_free(tiny_splade, np.linspace(0.1, 2, len(tiny_splade.tokenizer)))
    free.save_pretrained(str(tmp_path / "free"), create_model_card=False)
    trim.main(config(tmp_path / "free", folder, tmp_path / "out", data=str(folder), curve=(4,)))
    before, after = (vectors(SparseEncoder(str(tmp_path / n), device="cpu")) for n in ("free", "out"))
    torch.testing.assert_close(after[0], before[0], rtol=0, atol=0)
    assert float((after[1] > 0).sum(1).float().mean()) == pytest.approx(9, abs=1 / len(CORPUS))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"document_terms": 0}, "must be at least 1; received 0"),
        ({"curve": (4, 8)}, "--curve 4 8 would be ignored: only the judged queries of --data"),
        ({"split": "test"}, "--split test would be ignored: only the judged queries of --data"),
        ({"documents": "no-such-data"}, "no-such-data"),
        ({"data": "no-such-data"}, "no-such-data"),
        ({"model": "./no-such-model"}, "no-such-model"),
        ({"document_terms": 5000}, "document_terms must lie between 0 and .* received 5000"),
    ],
)
def test_bad_input_is_refused(change, message: str, model: Path, folder: Path, tmp_path: Path) -> None:
    """Each mistake is named, and leaves no folder behind."""
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        trim.main(config(model, folder, tmp_path / "out", **change))
    assert not (tmp_path / "out").exists()


def test_an_output_folder_that_holds_something_is_refused_before_any_work(
    model: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an hour of encoding it would be too late, and nothing there may be overwritten."""
    monkeypatch.setattr(data, "load_documents", None)  # a call would be another error
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="not an empty directory"):
        trim.main(config(model, folder, tmp_path / "out"))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine.txt"]


def test_a_folder_in_the_documents_is_refused_before_any_work(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The card of the model was read as one more document by the next command."""
    monkeypatch.chdir(folder.parent)
    with pytest.raises(ValueError, match=r"must not lie in the documents, .* received data/a in \./data"):
        trim.main(config(Path("no-such-model"), Path("./data"), Path("data/a"), documents="./data"))


def test_a_dense_model_and_a_bare_encoder_are_refused(
    tiny_dense, tiny_checkpoint: Path, folder: Path, tmp_path: Path
) -> None:
    """Neither has a SPLADE head; a bare masked language model has one."""
    from transformers import AutoModel, AutoTokenizer

    tiny_dense.save_pretrained(str(tmp_path / "dense"))
    AutoModel.from_pretrained(tiny_checkpoint).save_pretrained(tmp_path / "bare")
    AutoTokenizer.from_pretrained(tiny_checkpoint).save_pretrained(tmp_path / "bare")
    for name in ("dense", "bare"):
        with pytest.raises(ValueError, match="neither a saved SparseEncoder nor a masked language model"):
            trim.main(config(tmp_path / name, folder, tmp_path / "out"))
    assert not (tmp_path / "out").exists()
    trim.main(config(tiny_checkpoint, folder, tmp_path / "out"))
    documents = vectors(SparseEncoder(str(tmp_path / "out"), device="cpu"))[1]
    assert float((documents > 0).sum(1).float().mean()) == pytest.approx(9, abs=1 / len(CORPUS))


def test_a_failure_while_saving_leaves_nothing(
    model: Path, folder: Path, tmp_path: Path, monkeypatch
) -> None:
    """Half a model in the folder would be loaded by somebody."""

    def fail(*arguments: Any, **options: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("lexforge.export.write_trimmed_card", fail)
    with pytest.raises(OSError, match="no space left"):
        trim.main(config(model, folder, tmp_path / "out"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "model"]


def test_the_words_of_the_command_line_are_read(model: Path, folder: Path, tmp_path: Path) -> None:
    """MODEL has no flag, and `--curve` takes several numbers."""
    words = ["trim", str(model), "--document-terms", "9", "--documents", str(folder)]
    words += ["--data", str(folder), "--curve", "4", "12", "--output", str(tmp_path / "out")]
    cli.main(words)
    found = json.loads((tmp_path / "out" / "trim.json").read_text())
    assert [p["wanted"] for p in found["curve"] if p["setting"] == "level"] == [4, 9, 12]

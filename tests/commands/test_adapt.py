"""From a folder of documents to an adapted model and its index, and what the gate does with a bad one."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate import PartialState
from beir_folders import write_beir
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer, SparseEncoder
from sentence_transformers.base.modules import Router
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

from lexforge.adapt import Verdict
from lexforge.commands import adapt, search
from lexforge.common.types import DataError, Passage
from lexforge.corpus import encode, open_index
from lexforge.data import corpus_idf
from lexforge.evaluation import RetrievalEvaluator, RunScores, compare_runs
from lexforge.models import build_inference_free, build_lexical_backbone, build_splade, scale_head
from lexforge.runs import Stages
from lexforge.settings import ADAPT, PRESETS, SourceOptions

WORDS = "river bank flood bridge stone tower city road train sea island storm wind harbour ship".split()


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty files about some words each, with a title."""
    folder = tmp_path_factory.mktemp("documents")
    draw = random.Random(0)
    for number in range(40):
        own = draw.sample(WORDS, 4)
        sentences = [f"The {draw.choice(own)} and the {draw.choice(own)} number {number}." for _ in range(5)]
        (folder / f"{number}.md").write_text(f"# About {own[0]} {own[1]}\n\n{' '.join(sentences)}\n")
    return folder


@pytest.fixture
def cfg(documents: Path, tmp_path: Path, monkeypatch) -> adapt.Config:
    """A short run from nothing."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    train = replace(PRESETS["lexforge"].train, steps=3, batch_size=8, learning_rate=1e-3, precision="fp32")
    return adapt.Config(str(documents), "lexical", tmp_path / "out", pool=8, max_seq_length=48, train=train)


def run(cfg: adapt.Config) -> bool:
    """Run the command; whether it ended with the exit status of a model that is better."""
    try:
        adapt.main(cfg)
    except SystemExit as ended:
        if ended.code != 3:  # as the documentation says
            raise
        return False
    return True


def test_a_folder_of_texts_becomes_a_model_and_an_index(cfg, capsys) -> None:
    """Nothing but the documents is needed; what the numbers say is what the files hold."""
    better = run(cfg)
    out = capsys.readouterr().out
    found = json.loads((cfg.output / "adapt.json").read_text())
    assert found["verdict"]["better"] is better
    assert found["teachers"] == ["bm25", "start"]
    assert found["passages"] == 40
    assert set(found["before"]) == set(found["after"]) == {"held_out"}
    difference = found["after"]["held_out"]["nDCG@10"] - found["before"]["held_out"]["nDCG@10"]
    assert found["verdict"]["comparison"]["difference"] == pytest.approx(difference)
    assert better is (difference > 0)
    assert "held-out pseudo-queries" in out
    assert f"lexforge serve --index {cfg.output / 'index'}" in out
    assert json.loads((cfg.output / "config.json").read_text())["model"] == "lexical"
    # The index is that of the model, and holds every document.
    model = SparseEncoder(str(cfg.output / "model"), device="cpu")
    index, _, passages = open_index(cfg.output / "index")
    assert set(index.ids) == {f"{number}.md" for number in range(40)}
    expected = encode(model, [passages["7.md"].joined], "document").toarray()
    np.testing.assert_allclose(index.vectors(["7.md"]).toarray(), expected, rtol=1e-4, atol=1e-5)
    search.main(search.Config(cfg.output / "index", "river flood", k=2))
    assert ".md  About" in capsys.readouterr().out


def test_a_worse_model_is_rejected_and_the_start_is_kept(cfg, capsys) -> None:
    """A training that ruins the model must not replace it."""
    assert not run(replace(cfg, train=replace(cfg.train, learning_rate=3.0, steps=6)))
    printed = capsys.readouterr().out
    assert "so the adapted model is not better than the start\n" in printed
    assert f"{cfg.output / 'model'} is the start\n" in printed
    start = build_splade(cfg.output / "backbone", max_seq_length=48, similarity="dot", device="cpu")
    kept, rejected = (SparseEncoder(str(cfg.output / name), device="cpu") for name in ("model", "rejected"))
    text = ["the river and the bridge"]
    expected = encode(start, text, "query").toarray()
    np.testing.assert_allclose(encode(kept, text, "query").toarray(), expected, rtol=1e-5, atol=1e-6)
    assert not np.allclose(encode(rejected, text, "query").toarray(), expected, atol=1e-2)


def test_judged_and_real_queries_take_part(cfg, tmp_path: Path, documents: Path, capsys) -> None:
    """A search log joins the pseudo-queries or replaces them; judged queries decide. Teachers that are fitted
    on the documents need no files.
    """
    judged = tmp_path / "judged"
    texts = {path.name: path.read_text() for path in documents.iterdir()}
    qrels = {"dev": {f"q{n}": {f"{n}.md": 1} for n in range(6)}}
    write_beir(judged, texts, {f"q{n}": word for n, word in enumerate(WORDS[:6])}, qrels)
    log = tmp_path / "log.txt"
    log.write_text("\n".join(f"{one} {other}" for one in WORDS for other in WORDS if one != other))
    run(replace(cfg, judged=str(judged), queries=log, pseudo_queries=0, teacher=("bm25", "lsa")))
    found = json.loads((cfg.output / "adapt.json").read_text())
    assert set(found["before"]) == {"held_out", "judged"}
    assert (found["verdict"]["judged"], found["verdict"]["queries"]) == (True, 6)
    assert "24 of 210 real queries are used" in capsys.readouterr().out  # three steps of eight
    assert 20 <= found["rows"] <= 24
    assert found["teachers"] == ["bm25", "lsa"]


def test_one_judged_query_is_refused_before_anything_is_trained(cfg, tmp_path: Path, documents: Path) -> None:
    """The test of the gate failed after the whole training, and so did every resumed run."""
    texts = {path.name: path.read_text() for path in documents.iterdir()}
    write_beir(tmp_path / "judged", texts, {"q": WORDS[0]}, {"dev": {"q": {"1.md": 1}}})
    with pytest.raises(DataError, match=r"at least two judged queries; the split 'dev' of .*judged has 1"):
        adapt.main(replace(cfg, judged=str(tmp_path / "judged")))
    assert not (cfg.output / "log.jsonl").exists()


def test_a_long_log_gives_as_many_queries_as_training_takes(cfg, tmp_path: Path, capsys) -> None:
    """The candidates of a million queries would fill the memory, and most of them be scored for nothing."""
    log = tmp_path / "log.txt"
    lines = [f"query {number}" for number in range(100)]
    log.write_text("\n".join(lines))
    train = replace(cfg.train, steps=3, batch_size=8, gradient_accumulation_steps=2)
    cfg = replace(cfg, queries=log, train=train)
    found = adapt.read_asked(cfg).searched
    assert len(set(found)) == 48
    assert set(found) < set(lines)
    assert capsys.readouterr().out.startswith("48 of 100 real queries are used, at random")
    assert adapt.read_asked(cfg).searched == found
    assert set(adapt.read_asked(replace(cfg, train=replace(train, seed=1))).searched) != set(found)
    by_epochs = replace(train, steps=None, epochs=2.0)
    assert adapt.read_asked(replace(cfg, train=by_epochs)).searched == lines
    assert adapt.read_asked(replace(cfg, queries=None)).searched == []


def test_real_queries_come_before_pseudo_queries(cfg, documents: Path, tmp_path: Path) -> None:
    """The first of a sum that training never reached the end of were as often pseudo-queries as real ones."""
    log = tmp_path / "log.txt"
    log.write_text("\n".join(f"query {number}" for number in range(20)))
    passages = {path.name: Passage("", path.read_text(), path.name) for path in documents.iterdir()}
    texts = {key: passage.joined for key, passage in passages.items()}
    for steps, pseudo in ((3, 4), (2, 0)):  # batches of eight
        one = replace(cfg, queries=log, train=replace(cfg.train, steps=steps))
        sets = adapt.take_queries(one, adapt.read_asked(one), None, passages, texts)
        assert len(sets.own) == pseudo
        assert len(sets.queries) == 8 * steps


def test_the_columns_of_judged_data_are_no_columns_of_the_documents(
    cfg, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """A column that the judged data needed by name was looked for in the documents too, and refused there."""
    texts = [f"{one} and {other}" for one in WORDS[:5] for other in WORDS[5:10]]
    documents, judged = tmp_path / "documents.csv", tmp_path / "judged.csv"
    documents.write_text("\n".join(["id,text", *(f"{n},{text}" for n, text in enumerate(texts))]))
    judged.write_text("\n".join(["frage,antwort", *(f"{text.split()[0]},{text}" for text in texts)]))
    columns = SourceOptions(query_column="frage", positive_column="antwort")
    cfg = replace(cfg, model=str(tiny_checkpoint), judged=str(judged), split="train", source=columns)
    process = PartialState()
    for own in (documents, judged):  # rows of texts that are both keep their columns
        one = replace(cfg, documents=str(own), output=tmp_path / own.stem)
        library = adapt.read_documents(one, adapt.Asked([], None), process, Stages(process))[1]
        assert sorted(library.texts.values()) == sorted(texts)


def test_a_large_pool_is_filled(cfg) -> None:
    """The rankings ended after 100 documents, and --pool beyond what they held was cut in silence."""
    texts = {f"d{number}": f"the river number {number}" for number in range(150)}
    queries = {f"q{number}": f"river {number}" for number in range(8)}
    gate = RetrievalEvaluator(queries, texts, {query: {"d1": 1} for query in queries})
    sets = adapt.QuerySets(queries, {}, [], {"held_out": gate})
    scores = adapt.score_candidates(replace(cfg, teacher=("bm25",), pool=140), None, {}, sets, texts)[1]
    assert {len(found) for found in scores.values()} == {140}


def test_a_dense_model_gives_its_transformer_and_teaches(
    cfg, tiny_dense, tmp_path: Path, documents: Path
) -> None:
    """all-MiniLM, bge, e5 and gte are what people have: the start that is to be beaten is that model, and it
    stays where the adapted one is no better. None is better where every document answers every query.
    """
    tiny_dense.save_pretrained(str(tmp_path / "dense"))
    texts = {path.name: path.read_text() for path in documents.iterdir()}
    queries = {f"q{number}": word for number, word in enumerate(WORDS[:6])}
    qrels = {"dev": {query: dict.fromkeys(texts, 1) for query in queries}}
    write_beir(tmp_path / "judged", texts, queries, qrels)
    dense = replace(cfg, model=str(tmp_path / "dense"), max_seq_length=None, judged=str(tmp_path / "judged"))
    assert not run(dense)
    found = json.loads((cfg.output / "adapt.json").read_text())
    assert found["before"]["judged"]["nDCG@10"] == 1
    assert found["teachers"] == ["bm25", "start"]
    kept = SentenceTransformer(str(cfg.output / "model"), device="cpu")
    texts = ["the river and the bridge", "a storm"]
    np.testing.assert_allclose(kept.encode(texts), tiny_dense.encode(texts), rtol=1e-5, atol=1e-6)
    passages = open_index(cfg.output / "index")[2]
    assert {passage.document for passage in passages.values()} == {f"{number}.md" for number in range(40)}
    assert kept.max_seq_length == tiny_dense.max_seq_length


def test_an_adapted_dense_model_is_searched(cfg, tiny_dense, tmp_path: Path, documents: Path, capsys) -> None:
    """The index refused its own model, whose pooler had other random weights each time that it was loaded."""
    tiny_dense.save_pretrained(str(tmp_path / "dense"))
    cfg = replace(cfg, model=str(tmp_path / "dense"))
    texts = [path.read_text() for path in documents.iterdir()]
    model = build_splade(cfg.model, max_seq_length=48, device="cpu", texts=texts)
    start = adapt.prepare_start(cfg, ADAPT, model, texts)
    scores = RunScores({"nDCG@10": 0.5}, {"nDCG@10": {"a": 0.4, "b": 0.6}})
    verdict = Verdict(True, False, 2, compare_runs(scores, scores)["nDCG@10"], "the start")
    dense = start._replace(retriever=tiny_dense)  # so small a head counts as trained
    assert "favour a sparse model over a dense start" in adapt.caution_of(dense, verdict)
    assert not adapt.caution_of(dense, replace(verdict, judged=True))
    assert not adapt.caution_of(start, verdict)
    library = adapt.read_library(str(documents), cfg.source, model)
    adapt.keep_and_index(cfg, start, library, Stages(PartialState()), better=True)
    search.main(search.Config(cfg.output / "index", "river flood", k=2))
    assert ".md  About" in capsys.readouterr().out


def test_a_masked_language_model_is_held_against_bm25_and_adapted_in_any_case(
    cfg, tiny_checkpoint: Path, capsys
) -> None:
    """It retrieves nothing before, so there is no start to go back to; three steps do not beat BM25."""
    assert not run(replace(cfg, model=str(tiny_checkpoint)))
    found = json.loads((cfg.output / "adapt.json").read_text())
    assert found["teachers"] == ["bm25"]
    assert found["before"]["held_out"]["nDCG@10"] > found["after"]["held_out"]["nDCG@10"]
    out = capsys.readouterr().out
    assert f"{cfg.output / 'model'} is the adapted model, because {tiny_checkpoint} is no retriever" in out
    assert found["verdict"]["against"] == "BM25"  # nothing said so, and "before" reads as the start
    assert "so the adapted model is not better than BM25\n" in out
    assert "loss/own_activation" in out  # as in `lexforge train`: its head learns the words of a text
    assert not (cfg.output / "rejected").exists()
    assert len(open_index(cfg.output / "index")[0].ids) == 40


def test_a_wanted_number_of_document_terms_leaves_that_of_queries(
    cfg, tiny_checkpoint: Path, monkeypatch
) -> None:
    """Given the one, an untrained head lost the other, and its queries kept hundreds of terms."""
    asked: dict[str, object] = {}

    def trainer(*_, **options) -> None:
        asked.update(options)
        raise KeyboardInterrupt

    monkeypatch.setattr(adapt.training, "SpladeTrainer", trainer)
    with pytest.raises(KeyboardInterrupt):
        adapt.main(replace(cfg, model=str(tiny_checkpoint), document_terms=9))
    assert asked["document_terms"] == 9
    assert asked["query_terms"] is not None


def test_a_splade_start_keeps_most_of_its_weights_and_learns_the_order_and_the_best_document(
    cfg, tiny_checkpoint: Path, documents: Path, tmp_path: Path, capsys
) -> None:
    """The share of the preset, which was chosen with judged queries, made a model worse here unseen."""
    texts = [path.read_text().removeprefix("# ") for path in sorted(documents.iterdir())]
    start = build_splade(str(tiny_checkpoint), max_seq_length=48, similarity="dot", device="cpu")
    scale_head(start, texts, active_terms=1).save_pretrained(str(tmp_path / "splade"))
    cfg = replace(cfg, model=str(tmp_path / "splade"), train=replace(cfg.train, learning_rate=1e-5))
    prepared = adapt.prepare_start(cfg, ADAPT, start, texts)
    assert prepared.loss.distillation_temperature == 1.0
    better = run(cfg)
    folders = (
        tmp_path / "splade",
        cfg.output / "checkpoint-3",
        cfg.output / ("model" if better else "rejected"),
    )
    before, trained, adapted = (
        load_file(folder / "model.safetensors")["bert.encoder.layer.0.attention.self.query.weight"]
        for folder in folders
    )
    assert (trained - before).abs().max() > 1e-5
    # The weights are near .2, and float32 rounds them to 1.5e-8.
    torch.testing.assert_close(adapted - before, 0.4 * (trained - before), rtol=0, atol=5e-8)
    logged = capsys.readouterr().out
    assert all(name in logged for name in ("loss/infonce", "loss/distillation"))
    # Rows of four documents in batches of eight, of 40 passages: some repeat in every batch.
    assert "step 3 of 3" in logged


def test_an_inference_free_start_is_adapted(cfg, documents: Path, tmp_path: Path) -> None:
    """Its router was not told which columns hold queries, so training failed after everything was scored."""
    texts = [path.read_text() for path in sorted(documents.iterdir())]
    backbone = build_lexical_backbone(texts, tmp_path / "backbone", max_seq_length=48)
    model = build_splade(str(backbone), max_seq_length=48, similarity="dot", device="cpu")
    looked_up = build_inference_free(model, corpus_idf(texts, model.tokenizer, 48))
    looked_up.save_pretrained(str(tmp_path / "looked up"))
    run(replace(cfg, model=str(tmp_path / "looked up")))
    assert len(open_index(cfg.output / "index")[0].ids) == 40


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_the_start_is_measured_as_it_was_saved(similarity: str, cfg, documents: Path, tmp_path: Path) -> None:
    """A start with cosine was measured by the dot product, and what was kept had been measured by nobody."""
    texts = [path.read_text() for path in sorted(documents.iterdir())]
    backbone = build_lexical_backbone(texts, tmp_path / "backbone", max_seq_length=48)
    saved = build_splade(str(backbone), max_seq_length=48, similarity=similarity, device="cpu")
    saved.save_pretrained(str(tmp_path / "splade"))
    model = build_splade(str(tmp_path / "splade"), max_seq_length=48, device="cpu")
    start = adapt.prepare_start(replace(cfg, model=str(tmp_path / "splade")), ADAPT, model, texts)
    assert start.model is model
    assert start.retriever.similarity_fn_name == similarity
    assert (start.retriever is model) == (similarity == "dot")


def test_an_untrained_head_that_was_saved_with_cosine_is_adapted_by_the_dot_product(
    cfg, tiny_checkpoint: Path, documents: Path
) -> None:
    """Its loss refused the cosine after all candidates had been scored."""
    texts = [path.read_text() for path in sorted(documents.iterdir())]
    model = build_splade(str(tiny_checkpoint), max_seq_length=48, similarity="cosine", device="cpu")
    start = adapt.prepare_start(replace(cfg, model=str(tiny_checkpoint)), ADAPT, model, texts)
    assert start.retriever is None
    assert start.model.similarity_fn_name == "dot"


def test_the_lexical_backbone_trains_as_its_preset_says() -> None:
    """It once took the rows per batch and the rate after the warm-up of a pretrained model."""
    train = adapt.resolve(adapt.defaults("lexical")).train
    assert (train.steps, train.batch_size, train.lr_scheduler_type) == (300, 64, "cosine")
    assert adapt.defaults("some/model").train.batch_size == 32


def test_an_interrupted_run_goes_on(cfg, monkeypatch) -> None:
    """It ends with the model of a run that was never stopped, and goes on over no other documents. A run that
    has ended goes on as well.
    """
    own = cfg.output.with_name("documents")  # one of them is changed below
    shutil.copytree(cfg.documents, own)
    cfg = replace(cfg, documents=str(own), train=replace(cfg.train, save_steps=2))

    def killed(*_) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:  # after its last step
        broken.setattr(adapt.adapt, "judge", killed)
        with pytest.raises(KeyboardInterrupt):
            adapt.main(cfg)
    with pytest.raises(FileExistsError, match="or resume the run that it holds"):
        adapt.main(cfg)
    text = (own / "3.md").read_text()
    (own / "3.md").write_text(f"{text}\nOne sentence more.\n")
    with pytest.raises(ValueError, match="documents"):
        adapt.main(replace(cfg, resume=True))
    (own / "3.md").write_text(text)
    better = run(replace(cfg, resume=True))
    whole = replace(cfg, output=cfg.output.with_name("whole"))
    assert run(whole) is better
    name = "model" if better else "rejected"
    first, second = (SparseEncoder(str(folder / name), device="cpu") for folder in (cfg.output, whole.output))
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert one.equal(other)

    # A command that was killed in its last second has an index already; it is made anew.
    found = json.loads((whole.output / "adapt.json").read_text())
    (whole.output / "adapt.json").unlink()
    run(replace(whole, resume=True))
    again = json.loads((whole.output / "adapt.json").read_text())
    assert found["after"]["held_out"]["nDCG@10"] == again["after"]["held_out"]["nDCG@10"]
    assert len(open_index(whole.output / "index")[0].ids) == 40


@pytest.mark.parametrize("changed", ["queries", "judged"])
def test_a_run_goes_on_over_no_other_queries(cfg, tmp_path: Path, documents: Path, changed: str) -> None:
    """The second half of its steps would train on other rows, or be judged by other queries."""
    file = tmp_path / "log.txt"
    file.write_text("how to sort\nhow to read\n")
    judged = tmp_path / "judged"
    texts = {path.name: path.read_text() for path in documents.iterdir()}
    queries = {f"q{n}": word for n, word in enumerate(WORDS[:6])}
    write_beir(judged, texts, queries, {"test": {f"q{n}": {f"{n}.md": 1} for n in range(6)}})
    given = {"queries": {"queries": file}, "judged": {"judged": str(judged), "split": "test"}}[changed]
    cfg = replace(cfg, **given)

    adapt.claim(cfg, adapt.read_asked(cfg), texts)
    if changed == "queries":
        file.write_text("how to sort\nhow to write\n")
    else:
        lines = (judged / "qrels" / "test.tsv").read_text().splitlines()
        (judged / "qrels" / "test.tsv").write_text("\n".join(lines[:-1]) + "\n")
    with pytest.raises(ValueError, match="queries"):
        adapt.claim(replace(cfg, resume=True), adapt.read_asked(cfg), texts)


def test_a_model_that_is_no_teacher_is_refused_before_anything_is_measured(
    cfg, tiny_checkpoint: Path, tmp_path: Path, capsys
) -> None:
    """It was loaded when its turn to score came, after the start had been measured."""
    folder = tmp_path / "labels"
    BertForSequenceClassification(BertConfig.from_pretrained(tiny_checkpoint, num_labels=2)).save_pretrained(
        folder
    )
    AutoTokenizer.from_pretrained(tiny_checkpoint).save_pretrained(folder)
    with pytest.raises(DataError, match="one score per pair; received 2 outputs"):
        adapt.main(replace(cfg, teacher=("bm25", str(folder))))
    assert "take queries from the documents" not in capsys.readouterr().out


def test_a_model_with_two_heads_is_refused_before_the_documents_are_read(
    cfg, tiny_checkpoint: Path, tmp_path: Path, capsys
) -> None:
    """It has no one level for a number of terms, and that was found when everything had been scored."""
    sides = [list(build_splade(str(tiny_checkpoint), fused=False, device="cpu").children()) for _ in range(2)]
    two = SparseEncoder(modules=[Router.for_query_document(*sides)], device="cpu")
    two.save_pretrained(str(tmp_path / "two"))
    with pytest.raises(ValueError, match="received a model with 2"):
        adapt.main(replace(cfg, model=str(tmp_path / "two")))
    assert "read the documents" not in capsys.readouterr().out


def test_bad_input_is_refused(cfg, tmp_path: Path, tiny_checkpoint: Path) -> None:
    """Before any work is lost, with what was received."""
    with pytest.raises(FileNotFoundError, match="there is no file or folder"):
        adapt.main(replace(cfg, documents=str(tmp_path / "none")))
    log, other = tmp_path / "none.txt", tmp_path / "none"
    (tmp_path / "data.csv").touch()
    for wrong, error, message in (
        ({"queries": log}, FileNotFoundError, "there is no file"),
        ({"judged": str(other)}, FileNotFoundError, "there is no file or folder"),
        ({"teacher": ("bm25", str(other))}, FileNotFoundError, "there is no model at"),
        ({"teacher": ("bm25", "lsa", "bm25")}, ValueError, "each teacher once.* received bm25 several times"),
        ({"output": log.parent / "data.csv" / "x"}, NotADirectoryError, "data.csv is a file"),
        ({"split": "test"}, ValueError, "--split test would be ignored: it is the split of --judged"),
        ({"pool": 3}, ValueError, "--pool must be at least the 4 documents"),
        ({"pseudo_queries": 0}, ValueError, "leaves no query to train on"),
        ({"document_terms": 0}, ValueError, "document_terms must be a finite number above 0"),
        ({"output": Path(cfg.documents, "a", "b")}, ValueError, "--output must not lie in the documents"),
        ({"train": replace(cfg.train, optim="sgdx")}, ValueError, "sgdx is not a valid"),
    ):
        with pytest.raises(error, match=message):
            adapt.main(replace(cfg, **wrong))
        assert not cfg.output.exists(), "nothing was begun"
    with pytest.raises(ValueError, match="--sample must be at least 2 passages; received 1"):
        adapt.main(replace(cfg, sample=1, output=tmp_path / "second"))
    with pytest.raises(ValueError, match="is no retriever yet, so it cannot teach"):
        adapt.main(replace(cfg, model=str(tiny_checkpoint), teacher=("start",), output=tmp_path / "third"))
    with pytest.raises(
        ValueError, match=r"must lie between 0 and the .* terms of the vocabulary; received 99999"
    ):
        adapt.main(replace(cfg, document_terms=99999, output=tmp_path / "wide"))
    large = replace(cfg.train, batch_size=4096)
    with pytest.raises(ValueError, match="rows, and one batch needs 4096"):
        adapt.main(replace(cfg, train=large, output=tmp_path / "large"))
    alien = tmp_path / "alien.txt"
    alien.write_text("\n".join(f"qq{number} zz{number}" for number in range(20)))
    real = replace(cfg, model=str(tiny_checkpoint), queries=alien, pseudo_queries=0)
    with pytest.raises(DataError, match="0 of 20 queries give a training row, and one batch needs 8"):
        adapt.main(replace(real, output=tmp_path / "alien"))
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "a.txt").write_text("The only text that there is.")
    with pytest.raises(DataError, match=r"one gives 2 queries, .* at least 20 are needed"):
        adapt.main(replace(cfg, documents=str(tmp_path / "one"), sample=2, output=tmp_path / "fourth"))

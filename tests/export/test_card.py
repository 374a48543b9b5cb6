"""The card of a trained model: what the hub reads, what its reader can run, and what stays private."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from huggingface_hub.repocard import metadata_load, model_index_to_eval_results

from lexforge.export import CardFacts, CardOptions, write_card

FACTS = CardFacts(
    title="splade-wiki",
    similarity="dot",
    base_model="FacebookAI/xlm-roberta-base",
    data="hf:organisation/wiki",
    split="test",
    measured=1581,
    metrics={
        "bm25": {"nDCG@10": 0.5},
        "initial": {"nDCG@10": 0.41, "document_active_dims": 900.0},
        "trained": {"nDCG@10": 0.62361, "document_active_dims": 130.25, "flops": 1.5},
    },
    training={"preset": "v26", "learning_rate": 3e-5},
    citation="@misc{formal2021splade, title={SPLADE v2}}",
    language="ko",
    license="apache-2.0",
)


def test_a_model_is_named_by_the_hub_or_else_by_its_run(tmp_path: Path) -> None:
    """A path of the machine has no place in a title."""
    assert CardOptions().facts(tmp_path / "my-run")["title"] == "my-run"
    named = CardOptions(push_to_hub="organisation/splade-wiki")
    assert named.facts(tmp_path / "my-run")["title"] == "splade-wiki"


def test_the_hub_reads_the_results_and_the_origin(tmp_path: Path) -> None:
    """The hub's search and its leaderboards take these fields, in the form of its own library."""
    write_card(tmp_path, FACTS)
    head = metadata_load(tmp_path / "README.md")
    assert head is not None
    assert head["base_model"] == "FacebookAI/xlm-roberta-base"
    assert head["datasets"] == "organisation/wiki"
    assert (head["language"], head["license"]) == ("ko", "apache-2.0")
    name, results = model_index_to_eval_results(head["model-index"])
    assert name == "splade-wiki"
    found = {result.metric_type: result.metric_value for result in results}
    assert found == {"nDCG@10": 0.62361, "document_active_dims": 130.25, "flops": 1.5}
    assert {(each.dataset_type, each.dataset_split) for each in results} == {("organisation/wiki", "test")}
    text = ModelCard.load(tmp_path / "README.md").text
    row = next(line for line in text.splitlines() if line.startswith("| this model"))
    assert [cell.strip() for cell in row.strip("|").split("|")] == ["this model", "0.6236", "130.2", "1.5"]
    assert "| BM25 | 0.5 | – | – |" in text


def test_what_nobody_stated_is_unknown_and_folders_stay_private(tmp_path: Path) -> None:
    """A card is public; a path in it tells a stranger the names of users and disks."""
    facts = replace(
        FACTS,
        base_model=str(tmp_path / "secret" / "my-model"),
        data=str(tmp_path / "secret" / "my-data"),
        teacher=str(tmp_path / "secret" / "my-teacher"),
        training={"negatives": tmp_path / "secret" / "mined.jsonl"},
        language="unknown",
        license="unknown",
    )
    write_card(tmp_path, facts)
    content = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "secret" not in content
    assert str(tmp_path) not in content
    for name in ("my-model", "my-data", "my-teacher", "mined.jsonl", "| licence | unknown |"):
        assert name in content
    head = metadata_load(tmp_path / "README.md")
    assert head is not None
    assert {"base_model", "datasets", "language"}.isdisjoint(head)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")  # torch, of sparse products
def test_the_code_of_the_card_runs(tmp_path: Path, tiny_splade) -> None:
    """It is the first thing that a stranger copies."""
    tiny_splade.save_pretrained(str(tmp_path / "model"), create_model_card=False)
    write_card(tmp_path / "model", replace(FACTS, hub_name="organisation/splade-wiki"))
    content = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", content, flags=re.DOTALL)
    assert 'SparseEncoder("organisation/splade-wiki")' in block
    exec(block.replace("organisation/splade-wiki", str(tmp_path / "model")), {})
    root = Path(__file__).resolve().parents[2]
    assert all((root / script).is_file() for script in re.findall(r"python (scripts/\S+)", content))


@pytest.mark.parametrize("task", ["retrieval", "similarity", "labels"])
def test_the_card_of_a_dense_model_shows_its_own_class_and_no_export(
    task, tmp_path: Path, tiny_dense
) -> None:
    """Code for a SparseEncoder would load a dense model as something else, and the exports refuse it."""
    tiny_dense.save_pretrained(str(tmp_path / "model"), create_model_card=False)
    measures = {"initial": {"spearman_cosine": 0.1}, "trained": {"spearman_cosine": 0.5}}
    facts = replace(FACTS, kind="dense", task=task, metrics=measures, similarity="cosine", measured=1379)
    card = write_card(tmp_path / "model", replace(facts, title=str(tmp_path / "model"), citation=""))
    content = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", content, flags=re.DOTALL)
    exec(block, {})
    assert "1,379" in content
    for word in ("sparse", "SPLADE", "FLOPS", "export_model.py", "Citation"):
        assert word not in content
    assert card.data.pipeline_tag == "sentence-similarity"
    kinds = {"retrieval": "text-retrieval", "similarity": "semantic-similarity"}
    (result,) = card.data.eval_results
    assert result.task_type == kinds.get(task, "text-classification")


def test_a_card_without_results_is_refused(tmp_path: Path) -> None:
    """The table is what the card is read for."""
    with pytest.raises(ValueError, match="needs the measures of 'trained'"):
        write_card(tmp_path, replace(FACTS, metrics={"bm25": {"nDCG@10": 0.5}}))
    assert not list(tmp_path.iterdir())

"""The card of a trained model: what the hub reads, what its reader can run, and what stays private."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from huggingface_hub import HfApi, ModelCard
from huggingface_hub.repocard import metadata_load, model_index_to_eval_results
from sentence_transformers import SparseEncoderTrainer, SparseEncoderTrainingArguments
from sentence_transformers.sparse_encoder.losses import SparseMultipleNegativesRankingLoss, SpladeLoss

from lexforge.export import write_card
from lexforge.export.card import public_words
from lexforge.models import build_splade
from lexforge.settings import CardOptions

FACTS: dict[str, Any] = {
    "task": "retrieval",
    "base_model": "FacebookAI/xlm-roberta-base",
    "data": "hf:organisation/wiki:en",
    "measured": 1581,
    "metrics": {
        "bm25": {"nDCG@10": 0.5},
        "initial": {"nDCG@10": 0.41, "document_active_dims": 900.0},
        "trained": {"nDCG@10": 0.62361, "document_active_dims": 130.25, "flops": 1.5},
    },
    "settings": {"preset": "v26"},
    "command": ["/usr/bin/python3.11", "/usr/bin/lexforge", "train", "--steps", "4"],
}
OPTIONS = CardOptions(text_language="ko", license="apache-2.0", push_to_hub="organisation/splade-wiki")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "my-run" / "model").mkdir(parents=True)
    return tmp_path / "my-run" / "model"


def test_the_hub_reads_the_results_and_the_origin(folder: Path, tiny_splade) -> None:
    """The hub's search and its leaderboards take these fields, in the form of its own library."""
    write_card(tiny_splade, folder, OPTIONS, **FACTS)
    head = metadata_load(folder / "README.md")
    assert head is not None
    assert head["base_model"] == "FacebookAI/xlm-roberta-base"
    assert head["datasets"] == ["organisation/wiki"]
    assert (head["language"], head["license"]) == ("ko", "apache-2.0")
    assert {"sentence-transformers", "sparse-encoder", "splade", "lexforge"} <= set(head["tags"])
    name, results = model_index_to_eval_results(head["model-index"])
    assert name == "splade-wiki"
    found = {result.metric_type: result.metric_value for result in results}
    assert found == {"nDCG@10": 0.62361, "document_active_dims": 130.25, "flops": 1.5}
    assert {(each.dataset_type, each.dataset_split) for each in results} == {("organisation/wiki", "test")}
    text = ModelCard.load(folder / "README.md").text
    assert text.count("\n## Results\n") == 1
    row = next(line for line in text.splitlines() if line.startswith("| this model"))
    assert [cell.strip() for cell in row.strip("|").split("|")] == ["this model", "0.6236", "130.2", "1.5"]
    for words in (
        "# splade-wiki\n",
        "| BM25 | 0.5 | – | – |",
        "of the split `test` of organisation/wiki:en over 1,581 documents",
        "| preset | v26 |",
        "```bash\nlexforge train --steps 4\n```",
    ):
        assert words in text


def test_what_nobody_stated_is_unknown_and_folders_stay_private(
    folder: Path, tiny_splade, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A card is public; a path in it tells a stranger the names of users and disks. Nothing is looked up."""
    monkeypatch.setattr(HfApi, "model_info", lambda *_, **__: pytest.fail("the hub was asked"))
    secret = folder.parent / "secret"
    (secret / "my-model").mkdir(parents=True)
    facts = FACTS | {
        "base_model": str(secret / "my-model"),
        "data": str(secret / "my-data"),
        "settings": {"negatives": secret / "mined.jsonl", "teacher": str(secret / "my-teacher")},
        "command": ["python", str(secret / "splade.py"), f"--data={secret / 'my-data'}", "--seed", "1"],
    }
    write_card(tiny_splade, folder, CardOptions(), **facts)
    content = (folder / "README.md").read_text(encoding="utf-8")
    assert "secret" not in content
    assert str(folder.parent.parent) not in content
    for words in (
        "# my-run\n",
        "| base model | my-model |",
        "| data | my-data |",
        "| negatives | mined.jsonl |",
        "| teacher | my-teacher |",
        "python splade.py --data=my-data --seed 1",
        "License:** unknown",
    ):
        assert words in content
    head = metadata_load(folder / "README.md")
    assert head is not None
    assert head["license"] == "unknown"
    assert {"base_model", "datasets", "language"}.isdisjoint(head)


def test_code_in_the_command_is_no_path() -> None:
    """The code of `python -c` was looked for as a file, and the card of a trained model ended in an error."""
    command = ["python", "-c", f"from lexforge.commands import trim; {'x' * 300}"]
    assert public_words(command) == command


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")  # torch, of sparse products
def test_a_trained_model_has_its_training_in_the_card_and_no_text_of_its_data(
    folder: Path, tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Numbers of the training are worth publishing; texts of a data set may be private. The code is run."""
    model = build_splade(str(tiny_checkpoint))
    rows = [{"anchor": f"frage {word}", "positive": f"antwort {word}"} for word in "abcdefgh"]
    arguments = SparseEncoderTrainingArguments(
        str(folder.parent / "trainer"), max_steps=1, report_to="none", save_strategy="no", use_cpu=True
    )
    ranking = SparseMultipleNegativesRankingLoss(model)
    loss = SpladeLoss(model, ranking, document_regularizer_weight=1e-5)
    SparseEncoderTrainer(model, arguments, Dataset.from_list(rows), loss=loss).train()
    model.save_pretrained(str(folder), create_model_card=False)
    write_card(model, folder, OPTIONS, **FACTS)
    content = (folder / "README.md").read_text(encoding="utf-8")
    assert "SparseMultipleNegativesRankingLoss" in content
    assert "* Size: 8 training samples" in content
    assert "`max_steps`: 1" in content
    assert "[organisation/wiki:en](https://huggingface.co/datasets/organisation/wiki)" in content
    for word in ("frage", "antwort", "Training Time", str(folder.parent)):
        assert word not in content
    head = metadata_load(folder / "README.md")
    assert head is not None
    assert not head.get("widget")
    (block,) = re.findall(r"```python\n(.*?)```", content, flags=re.DOTALL)
    assert 'SparseEncoder("organisation/splade-wiki")' in block
    capsys.readouterr()
    exec(block.replace("organisation/splade-wiki", str(folder)), {})
    assert f"# {capsys.readouterr().out.splitlines()[0]}" in block


@pytest.mark.parametrize("task", ["retrieval", "similarity", "labels"])
def test_the_card_of_a_dense_model_is_that_of_a_dense_model(task, folder: Path, tiny_dense) -> None:
    """Code for a SparseEncoder would load a dense model as something else."""
    tiny_dense.save_pretrained(str(folder), create_model_card=False)
    measures = {"initial": {"spearman_cosine": 0.1}, "trained": {"spearman_cosine": 0.5}}
    facts = FACTS | {"task": task, "metrics": measures, "measured": 1379}
    card = write_card(tiny_dense, folder, OPTIONS, **facts)
    content = (folder / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", content, flags=re.DOTALL)
    assert ("encode_query" in block) == (task == "retrieval")
    exec(block.replace("organisation/splade-wiki", str(folder)), {})
    assert "1,379" in content
    for word in ("SparseEncoder", "SPLADE", "FLOPS"):
        assert word not in content
    assert card.data.pipeline_tag == "sentence-similarity"
    types = {"retrieval": "text-retrieval", "similarity": "semantic-similarity"}
    (result,) = card.data.eval_results
    assert result.task_type == types.get(task, "text-classification")

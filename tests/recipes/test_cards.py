"""The card that a dense recipe leaves beside its model, and its upload to a stand-in of the hub."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import pytest
from beir_folders import write_beir, write_lines
from huggingface_hub.repocard import metadata_load
from loaded_recipes import load_recipe

from lexforge.report import run_verdict, write_page  # the one of the recipe is replaced here
from lexforge.settings import CardOptions
from lexforge.training import TrainingSettings

TEXTS = [f"{one} a {two}" for one in ("sort", "read", "parse", "close") for two in ("list", "tree", "file")]


def write_queries(folder: Path) -> str:
    """Each text is a document, and its first word with another one the query for it."""
    write_beir(
        folder,
        {f"d{i}": text for i, text in enumerate(TEXTS)},
        {f"q{i}": f"{text} please" for i, text in enumerate(TEXTS)},
        {
            split: {f"q{i}": {f"d{i}": 1} for i in places}
            for split, places in (("train", range(8)), ("test", range(8, 12)))
        },
    )
    return str(folder)


def write_pairs(folder: Path) -> str:
    pairs = zip(TEXTS, TEXTS[1:] + TEXTS[:1], strict=True)
    rows = [
        {"sentence1": a, "sentence2": b, "score": i % 5, "split": "test" if i > 7 else "train"}
        for i, (a, b) in enumerate(pairs)
    ]
    return str(write_lines(folder / "pairs.jsonl", rows))


def write_labels(folder: Path) -> str:
    splits = 16 * ["train"] + 4 * ["dev"] + 4 * ["test"]
    rows = [
        {"id": str(i), "text": text, "labels": text.split(" a "), "split": splits[i]}
        for i, text in enumerate(TEXTS * 2)
    ]
    return str(write_lines(folder / "labels.jsonl", rows))


RECIPES: dict[str, tuple[Any, dict[str, Any], list[str]]] = {
    "infonce_retrieval": (
        write_queries,
        {},
        ["| BM25 |", "over 12 documents", "nDCG@10", "| loss | infonce |", "| negatives | none |"],
    ),
    "cosent_sts": (write_pairs, {"scale": 11.0}, ["the 4 pairs", "spearman_cosine", "| scale | 11.0 |"]),
    "nws_multilabel": (write_labels, {}, ["on 4 texts", "label_map", "| loss | nws |"]),
}


@pytest.mark.parametrize("name", RECIPES)
def test_a_dense_recipe_uploads_its_model_with_a_card_that_a_stranger_can_use(
    name: str, hub: Path, tmp_path: Path, tiny_checkpoint: Path
) -> None:
    """The card has results, licence, training, no text of the data, and code that runs. There is a page."""
    write, options, words = RECIPES[name]
    recipe = load_recipe(name)
    train = TrainingSettings(
        steps=1, batch_size=4, gradient_accumulation_steps=1, learning_rate=1e-3, precision="fp32"
    )
    out = tmp_path / "run"
    card = CardOptions(text_language="ko", license="mit", push_to_hub="organisation/name")
    settings = {"model": str(tiny_checkpoint), "output_dir": out, "max_seq_length": 16, "train": train}
    recipe.main(recipe.Config(data=write(tmp_path / "data"), card=card, **settings, **options))

    files, sent = (
        sorted(path.relative_to(folder) for path in folder.rglob("*"))
        for folder in (out / "model", hub / "organisation" / "name")
    )
    assert files == sent
    content = (out / "model" / "README.md").read_text(encoding="utf-8")
    head = metadata_load(out / "model" / "README.md")
    assert head is not None
    assert (head["license"], head["language"]) == ("mit", "ko")
    assert str(tmp_path) not in content
    for word in (
        "# name",
        "| before training |",
        "| this model |",
        "| steps | 1 |",
        "`max_steps`: 1",
        *words,
    ):
        assert word in content
    assert not any(text in content for text in TEXTS)
    page = html.unescape(write_page(out).read_text(encoding="utf-8"))
    assert run_verdict(out) in page
    assert '<section id="training"' in page
    (code,) = re.findall(r"```python\n(.*?)```", content, flags=re.DOTALL)
    assert 'SentenceTransformer("organisation/name")' in code
    exec(code.replace("organisation/name", str(out / "model")), {})

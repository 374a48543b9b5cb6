"""The three scores of BGE-M3 as a teacher of pairs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from lexforge.cli import main
from lexforge.common.types import DataError
from lexforge.teachers import load_scorer

PAIRS = [
    ("sort a list", "a list of words"),
    ("the index", "a list of words"),
    ("the index", "the index of a graph of the index"),
    ("search", "open file"),
]


def three_scores(folder: Path, query: str, document: str) -> list[float]:
    """By loops over the tokens of a pair alone, from the files."""
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    sparse, several = (torch.load(folder / f"{name}_linear.pt") for name in ("sparse", "colbert"))
    sides = []
    for text in (query, document):
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            states = model(input_ids=ids).last_hidden_state[0]  # [L, D]
        terms: dict[int, float] = {}
        for term, state in zip(ids[0].tolist(), states, strict=True):
            weight = float((sparse["weight"][0] @ state + sparse["bias"][0]).relu())
            if term not in tokenizer.all_special_ids:
                terms[term] = max(weight, terms.get(term, 0.0))
        vectors = [several["weight"] @ state + several["bias"] for state in states[1:]]
        sides.append((states[0] / states[0].norm(), terms, [vector / vector.norm() for vector in vectors]))
    (dense_q, terms_q, vectors_q), (dense_d, terms_d, vectors_d) = sides
    late = [max(float(one @ other) for other in vectors_d) for one in vectors_q]
    return [
        float(dense_q @ dense_d),
        sum(weight * terms_d.get(term, 0.0) for term, weight in terms_q.items()),
        sum(late) / len(late),
    ]


@pytest.mark.parametrize("weights", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 0.3, 1)])
def test_the_scores_are_those_of_loops(tiny_m3: Path, weights: tuple[float, float, float]) -> None:
    """Each score alone, and their mean; batches of two texts are padded."""
    scorer = load_scorer(str(tiny_m3), batch_size=2, m3_weights=weights)
    expected = [np.dot(weights, three_scores(tiny_m3, *pair)) / sum(weights) for pair in PAIRS]
    np.testing.assert_allclose(scorer.score(PAIRS), expected, atol=2e-6)
    assert scorer.name != load_scorer(str(tiny_m3), m3_weights=(2, 1, 3)).name, "one cache each"


def test_the_command_writes_them(tiny_m3: Path, tmp_path: Path) -> None:
    """`lexforge score` labels rows by the weighted mean."""
    rows = [{"anchor": "the index", "positive": PAIRS[2][1], "negative_1": "a list of words"}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = [
        "score",
        "--teacher",
        str(tiny_m3),
        "--m3-weights",
        "1",
        ".3",
        "1",
        "--cache",
        str(tmp_path / "c"),
    ]
    words += ["--rows", str(tmp_path / "rows.jsonl"), "--output", str(tmp_path / "labelled.jsonl")]
    main(words)
    [row] = map(json.loads, (tmp_path / "labelled.jsonl").read_text().splitlines())
    scorer = load_scorer(str(tiny_m3), m3_weights=(1, 0.3, 1))
    np.testing.assert_allclose(row["label"], scorer.score([PAIRS[2], PAIRS[1]]), atol=1e-6)


def test_what_has_no_three_scores_is_refused(tiny_m3: Path, tiny_checkpoint: Path) -> None:
    """A SPLADE model would be scored by one of them under the name of all."""
    with pytest.raises(DataError, match="three heads of BGE-M3"):
        load_scorer(str(tiny_checkpoint), m3_weights=(1, 1, 1))
    for weights in ((0, 0, 0), (-1, 1, 1), (float("nan"), 1, 1)):
        with pytest.raises(DataError, match="must be >= 0 and not all 0"):
            load_scorer(str(tiny_m3), m3_weights=weights)
    with pytest.raises(DataError, match="cannot be loaded"):
        load_scorer("no/such/place", m3_weights=(1, 1, 1))

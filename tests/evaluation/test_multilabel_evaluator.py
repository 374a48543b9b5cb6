"""The measures of label sets inside a Trainer."""

from __future__ import annotations

import numpy as np
from sentence_transformers import SentenceTransformer

from lexforge.evaluation import MULTILABEL_METRICS, LabelledVectors, MultiLabelEvaluator, evaluate_multilabel


def test_it_gives_the_measures_of_the_function_under_its_name(tiny_dense: SentenceTransformer) -> None:
    """The best checkpoint is chosen by these names; the numbers are those of the end of a run."""
    train = {
        "text": ["sort the list", "open a file", "sort an array", "close the file"],
        "label": [[1, 0], [0, 1]] * 2,
    }
    dev = {"text": ["list and array", "read a file"], "label": [[1, 0], [0, 1]]}
    found = MultiLabelEvaluator(train, dev)(tiny_dense)
    vectors = {
        name: LabelledVectors(
            tiny_dense.encode_document(columns["text"], convert_to_numpy=True), np.array(columns["label"])
        )
        for name, columns in (("train", train), ("dev", dev))
    }
    expected = evaluate_multilabel(vectors["train"], vectors["dev"], vectors["dev"])
    assert tuple(expected) == MULTILABEL_METRICS
    assert {f"dev_{name}": round(value, 5) for name, value in expected.items()} == {
        name: round(value, 5) for name, value in found.items()
    }

"""The measures of label sets as an evaluator that a Trainer calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sentence_transformers.base.evaluation.evaluator import BaseEvaluator
from sentence_transformers.base.model import BaseModel

from lexforge.evaluation.multilabel import LabelledVectors, evaluate_multilabel


class MultiLabelEvaluator(BaseEvaluator):
    """Measures a dense encoder on one split by `evaluate_multilabel`; the thresholds come from that split.

    Args:
        train: The columns `text` and `label` of the texts that fit the classifiers and are searched.
        measured: The same columns of the texts that are measured.
        name: Prefix of the measures.
    """

    def __init__(
        self, train: Mapping[str, Sequence[Any]], measured: Mapping[str, Sequence[Any]], name: str = ""
    ) -> None:
        super().__init__()
        self.train = train
        self.measured = measured
        self.name = name
        self.primary_metric = f"{name}_label_map" if name else "label_map"

    def __call__(
        self, model: BaseModel, output_path: str | None = None, epoch: int = -1, steps: int = -1
    ) -> dict[str, float]:
        """Encode both splits and measure.

        Args:
            model: The encoder, a `SentenceTransformer`.
            output_path: Not used: the Trainer logs the measures, and nothing else is written.
            epoch: Epoch for the model card; -1 outside training.
            steps: Step for the model card; -1 outside training.

        Returns:
            The measures with the evaluator's name before each key.
        """
        train, measured = (LabelledVectors.encoded(model, columns) for columns in (self.train, self.measured))
        values = evaluate_multilabel(train, measured, measured)
        prefixed: dict[str, float] = self.prefix_name_to_metrics(values, self.name)
        self.store_metrics_in_model_card_data(model, prefixed, epoch, steps)
        return prefixed

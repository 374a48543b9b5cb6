"""The card of a trimmed model: what was done to which model, before the card of that model."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard
from sentence_transformers.util import load_file_path

from lexforge import __version__
from lexforge.evaluation import metrics_table
from lexforge.export.card import CARD, public_name, public_words
from lexforge.models.names import checked_name
from lexforge.storage.files import write_file

_NEW = """---
library_name: sentence-transformers
pipeline_tag: feature-extraction
tags:
- sentence-transformers
- sparse-encoder
- splade
---
"""


def write_trimmed_card(
    folder: str | Path,
    *,
    title: str,
    base_model: str,
    documents: str,
    sampled: int,
    before: float,
    wanted: float,
    reached: float,
    level: float,
    scale: int,
    idf_bias: float,
    command: Sequence[str],
    data: str | None = None,
    split: str | None = None,
    metrics: Mapping[str, Mapping[str, float]] | None = None,
    drawing: str | None = None,
) -> None:
    """Write the card of a model whose documents were trimmed.

    The card of the base model follows, with its licence and without its results, which the trimmed model
    does not have. A path of the machine appears by its last part only.

    Args:
        folder: The folder that the trimmed model was saved to.
        title: Name of the model.
        base_model: What was trimmed: a folder or a name on the hub.
        documents: Where the documents came from that the level was found on.
        sampled: How many of them were counted.
        before: Mean number of active terms per document before.
        wanted: The number that was asked for.
        reached: The mean number of the trimmed model.
        level: What was subtracted from all logits.
        scale: What they were multiplied by afterwards.
        idf_bias: Shift of a term's logit per unit of its idf that came before; 0 where there was none.
        command: The words of the command that trimmed it.
        data: What it was measured on; None where it was not.
        split: The split that it was measured on.
        metrics: "before" and "after" to measure to value.
        drawing: File of the folder that shows the curve of these measures.
    """
    name = checked_name(base_model)
    found = load_file_path(name, CARD)
    given = ModelCard(Path(found).read_text(encoding="utf-8") if found else _NEW, ignore_metadata_errors=True)
    head: Any = given.data
    head.eval_results = head.model_name = None
    head.tags = list(dict.fromkeys([*(head.tags or []), "lexforge"]))
    if not Path(name).exists():
        head.base_model = name
    shifted = ""
    if idf_bias:
        shifted = f"The bias of each term was shifted by {idf_bias:g} times its idf in the documents. "
    section = (
        f"# {title}\n\n"
        f"This is {public_name(name)} with another number of terms: a document has {reached:.1f} active "
        f"terms on average, {wanted:g} were wanted, and it had {before:.1f} before. Nothing was trained. "
        f"{shifted}The level {level:.4f} was subtracted from the bias of the decoder, which changes how "
        f"many terms queries have too, and all logits were multiplied by {scale}. The means are those of "
        f"{sampled:,} documents of {public_name(documents)}; other texts have other numbers.\n"
    )
    if metrics is not None:
        section += (
            f"\nOn the split `{split}` of {public_name(str(data))}:\n\n```\n{metrics_table(metrics)}\n```\n"
        )
    if drawing is not None:
        section += f"\n![nDCG@10 over the number of terms]({drawing})\n"
    section += f"\nTrimmed by lexforge {__version__} with the command\n\n"
    section += f"```bash\n{shlex.join(public_words(command))}\n```\n"
    if given.text.strip():
        section += (
            f"\nThe card of {public_name(name)} follows. What it says of results and of active terms was "
            f"measured before.\n\n---\n\n{given.text.strip()}\n"
        )
    given.text = f"\n{section}"
    write_file(Path(folder) / CARD, str(given).encode())

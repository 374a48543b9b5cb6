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
    trimmed: Mapping[str, Any],
    *,
    command: Sequence[str],
    metrics: Mapping[str, Mapping[str, float]] | None = None,
    drawing: str | None = None,
) -> None:
    """Write the card of a model whose documents were trimmed.

    The card of the base model follows, with its licence and without its results, which the trimmed model
    does not have. A path of the machine appears by its last part only.

    Args:
        folder: The folder that the trimmed model was saved to.
        trimmed: What `trim.json` holds: the settings of `lexforge trim`, the level, the scale, how many
            documents were counted, and their terms before and after.
        command: The words of the command that trimmed it.
        metrics: "before" and "after" to measure to value, on the data of the settings; None without any.
        drawing: File of the folder that shows the curve of these measures.
    """
    config, terms = trimmed["config"], trimmed["terms"]["document"]
    name, shown = checked_name(config["model"]), public_name(config["model"])  # of a run: its own name
    found = load_file_path(name, CARD)
    given = ModelCard(Path(found).read_text(encoding="utf-8") if found else _NEW, ignore_metadata_errors=True)
    head: Any = given.data
    head.eval_results = head.model_name = None
    head.tags = list(dict.fromkeys([*(head.tags or []), "lexforge"]))
    if not Path(name).exists():
        head.base_model = name
    shifted = ""
    if shift := config["idf_bias"]:
        shifted = f"The bias of each term was shifted by {shift:g} times its idf in the documents. "
    section = (
        f"# {Path(config['output']).resolve().name}\n\n"
        f"This is {shown} with another number of terms: a document has {terms['after']:.1f} "
        f"active terms on average, {config['document_terms']} were wanted, and it had "
        f"{terms['before']:.1f} before. Nothing was trained. {shifted}The level {trimmed['level']:.4f} was "
        "subtracted from the bias of the decoder, which changes how many terms queries have too, and all "
        f"logits were multiplied by {trimmed['scale']}. The means are those of "
        f"{trimmed['counted']['documents']:,} documents of {public_name(config['documents'])}; other texts "
        "have other numbers.\n"
    )
    if metrics is not None:
        measured_on = f"On the split `{config['split']}` of {public_name(str(config['data']))}"
        section += f"\n{measured_on}:\n\n```\n{metrics_table(metrics)}\n```\n"
    if drawing is not None:
        section += f"\n![nDCG@10 over the number of terms]({drawing})\n"
    section += f"\nTrimmed by lexforge {__version__} with the command\n\n"
    section += f"```bash\n{shlex.join(public_words(command))}\n```\n"
    if given.text.strip():
        section += (
            f"\nThe card of {shown} follows. What it says of results and of active terms was "
            f"measured before.\n\n---\n\n{given.text.strip()}\n"
        )
    given.text = f"\n{section}"
    write_file(Path(folder) / CARD, str(given).encode())

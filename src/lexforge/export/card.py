"""The card of a trained encoder: that of sentence-transformers, with a section of results."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from huggingface_hub import EvalResult, ModelCard
from sentence_transformers.base.model import BaseModel
from sentence_transformers.base.model_card import generate_model_card

from lexforge import __version__
from lexforge.common.numbers import byte_size
from lexforge.evaluation import MEASURE_NAMES, SYSTEM_NAMES
from lexforge.settings import LEXICAL, UNKNOWN, CardOptions
from lexforge.storage.files import write_file

CARD = "README.md"
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_SYSTEMS = SYSTEM_NAMES | {"trained": "this model", "own_terms": "this model without its expansion"}


@dataclass(frozen=True)
class _Task:
    """What a card says of the task that a model was measured on."""

    hub_type: str
    name: str
    results: str  # one sentence about the table of results


_TASKS = {
    "retrieval": _Task(
        "text-retrieval",
        "retrieval",
        "All rows answer the queries of the split `test` of {data} over {measured:,} documents.",
    ),
    "similarity": _Task(
        "semantic-similarity",
        "semantic similarity",
        "All rows correlate the similarities with the scores of the {measured:,} pairs of the split "
        "`test` of {data}.",
    ),
    "labels": _Task(
        "text-classification",
        "multi-label classification",
        "All rows are measured on {measured:,} texts of the split `test` of {data}: F1 of a linear probe "
        "(`probe`), of the nearest label means (`centroid`) and of the classifier that the loss learned "
        "(`head`), and the mean average precision of finding texts that share a label (`label_map`).",
    ),
}


def write_card(
    model: BaseModel,
    folder: str | Path,
    options: CardOptions,
    *,
    task: Literal["retrieval", "similarity", "labels"],
    base_model: str,
    data: str,
    measured: int,
    metrics: Mapping[str, Mapping[str, float]],
    settings: Mapping[str, Any],
    command: Sequence[str],
) -> ModelCard:
    """Write the card of a trained model beside its files, in place of the one that was there.

    It is the card of sentence-transformers, without its examples of training texts and without looking
    anything up on the hub. A path of the machine appears by its last part only.

    Args:
        model: The trained model. Its `model_card_data`, which the Trainer has filled, takes what follows.
        folder: The folder that it was saved to. The name of the folder around it, which is that of the run,
            is the model's title if it is not uploaded.
        options: Language, licence and the name on the hub.
        task: What it was measured on, by the test split.
        base_model: What it was trained from: a name on the hub, a folder or a word such as `lexical`.
        data: What it was trained and measured on: `hf:` and a name on the hub, a folder or a word.
        measured: Number of documents that were searched, of pairs that were scored, or of texts that were
            classified.
        metrics: System ("bm25", "initial", "trained", "own_terms") to measure to value; "trained" is there.
        settings: Name to value of the settings that a reader needs to compare results.
        command: The words of the command that trained it.

    Returns:
        The card, as the hub reads it.
    """
    title = (options.push_to_hub or Path(folder).resolve().parent.name).rsplit("/", 1)[-1]
    data_name = public_name(data).removeprefix("hf:")
    # The name of a data set on the hub ends before its configuration.
    data_on_hub = data_name.split(":")[0] if data.startswith("hf:") else None
    _fill(model, title, options, task, base_model, data_name, data_on_hub)
    about = {
        "base model": "none; a small encoder made of the data" if base_model == LEXICAL else base_model,
        "data": data_name,
        **settings,
    }
    section = _results(metrics, _TASKS[task].results.format(data=data_name, measured=measured))
    section += (
        f"\n\n| | |\n|---|---|\n{_rows(about)}\n\nTrained by lexforge {__version__} with the command\n\n"
    )
    section += f"```bash\n{shlex.join(public_words(command))}\n```\n"
    before, heading, after = generate_model_card(model).partition("\n## Usage\n")
    card = ModelCard(f"{before}\n{section}{heading}{after}")
    head: Any = card.data
    head.model_name = title
    head.eval_results = [
        EvalResult(
            task_type=_TASKS[task].hub_type,
            task_name=_TASKS[task].name.title(),
            dataset_type=data_on_hub or re.sub(r"[^\w.-]+", "-", data_name),
            dataset_name=data_name,
            dataset_split="test",
            metric_type=measure,
            metric_name=measure,
            metric_value=round(float(value), 5),
        )
        for measure, value in metrics["trained"].items()
    ]
    write_file(Path(folder) / CARD, str(card).encode())
    return card


def public_name(name: str | Path) -> str:
    """Return what a stranger may read of a name that a command line took.

    Args:
        name: A hub name, a word such as `lexical`, or a path.

    Returns:
        The last part of a path that exists, is absolute or has more parts than a hub name; else the name.
    """
    path = Path(name)
    if str(name).startswith("hf:"):
        return str(name)
    found = os.path.exists(path)  # which takes a word that is too long for a file, such as code, for none
    if isinstance(name, Path) or found or path.is_absolute() or len(path.parts) > 2:
        return path.resolve().name
    return str(name)


def public_words(command: Sequence[str]) -> list[str]:
    """Return a command with the last part of each path, also behind `--option=`; Python's own is left out."""
    words = []
    for word in command:
        option, equals, value = word.partition("=") if word.startswith("-") else ("", "", word)
        words.append(option + equals + (public_name(value) if value else ""))
    program = len(words) > 1 and not words[1].startswith("-") and not words[1].endswith(".py")
    return words[1:] if program and words[0].startswith("python") else words


def _fill(
    model: BaseModel,
    title: str,
    options: CardOptions,
    task: str,
    base_model: str,
    data_name: str,
    data_on_hub: str | None,
) -> None:
    """Put into the model's card data what the Trainer could not know, and take out what shall not stand."""
    card: Any = model.model_card_data
    card.model_name, card.model_id = title, options.push_to_hub
    card.language = None if options.text_language == UNKNOWN else options.text_language
    card.license = options.license
    card.task_name = _TASKS[task].name
    card.ir_model = task == "retrieval"  # whether the example tells queries from documents
    if base_model == LEXICAL or Path(base_model).exists():  # the hub may know another model by that name
        card.base_model = card.base_model_revision = None
    elif card.base_model is None and _HUB_NAME.fullmatch(base_model):
        card.base_model = base_model
    card.first_save = False  # the first time it would ask the hub for models of the folder's name
    card.datasets = [data_on_hub] if data_on_hub else []
    for dataset in card.train_datasets:
        dataset.update({"name": data_name, "id": data_on_hub} if data_on_hub else {"name": data_name})
    card.add_tags("lexforge")
    # Texts of the data are not published with the model.
    card.widget, card.usage_examples = [], None
    for dataset in (*card.train_datasets, *card.eval_datasets):
        for part in ("examples", "examples_table", "_example_columns"):
            dataset.pop(part, None)
    # The section of results replaces those of the evaluations during training, of which the last one need not
    # be of the model that was kept. The time since training began includes evaluations.
    card.eval_results_dict, card._training_start_time = {}, None


def _results(metrics: Mapping[str, Mapping[str, float]], sentence: str) -> str:
    """Return a heading and a table with one row per system; a measure that a system lacks is a dash."""
    columns = list(dict.fromkeys(column for values in metrics.values() for column in values))
    head = [" ", *(MEASURE_NAMES.get(column, column) for column in columns)]
    lines = [" | ".join(head), "|".join(["---"] + ["---:"] * len(columns))]
    for system, values in metrics.items():
        cells = [_cell(column, values[column]) if column in values else "–" for column in columns]
        lines.append(" | ".join([_SYSTEMS.get(system, system), *cells]))
    table = "\n".join(f"| {line} |" for line in lines)
    if "flops" in columns:
        sentence += " FLOPS is the expected number of multiplications for one query and one document."
    return f"## Results\n\n{table}\n\n{sentence}"


def _cell(measure: str, value: float) -> str:
    return byte_size(value) if measure == "index_bytes" else f"{value:.4g}"


def _rows(settings: Mapping[str, Any]) -> str:
    """Return the rows of a table, without folders and without what would break the table."""
    rows = []
    for name, value in settings.items():
        shown = public_name(value) if isinstance(value, str | Path) else str(value)
        cell = shown.replace("|", "\\|").replace("\n", " ")
        rows.append(f"| {name} | {cell} |")
    return "\n".join(rows)

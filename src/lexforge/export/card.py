"""The card of a trained encoder: the README of its folder, which a stranger on the hub sees first."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from lexforge.common.extras import install_command
from lexforge.common.files import write_file
from lexforge.common.similarity import Similarity
from lexforge.export.card_options import UNKNOWN

CARD = "README.md"
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_ROWS = {"bm25": "BM25", "initial": "before training", "trained": "this model"}
_COLUMNS = {
    "query_active_dims": "terms per query",
    "document_active_dims": "terms per document",
    "flops": "FLOPS",
}

_TEXT = """# {title}

{title} is {what}, trained with lexforge on sentence-transformers. A text becomes
{vector}. Vectors are compared by {similarity_words}.

| | |
|---|---|
{facts}

## Results

{results}

{results_words}

## Use

```python
{code}
```

{use_words}
{runtimes}
## Training

{numbers}
{citation}"""
_SPARSE_CODE = """from sentence_transformers import SparseEncoder

model = SparseEncoder("{load_name}")
queries = model.encode_query(["how do vaccines work"])
documents = model.encode_document(["A vaccine trains the immune system.", "Bread is baked from flour."])
print(model.similarity(queries, documents))  # by {similarity}
print(model.decode(queries[0], top_k=10))  # the terms of the query and their weights"""
_DENSE_CODE = """from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{load_name}")
queries = model.encode_query(["how do vaccines work"])
documents = model.encode_document(["A vaccine trains the immune system.", "Bread is baked from flour."])
print(model.similarity(queries, documents))  # by {similarity}"""
_TEXTS_CODE = """from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{load_name}")
vectors = model.encode(["A vaccine trains the immune system.", "Bread is baked from flour."])
print(model.similarity(vectors, vectors))  # by {similarity}"""
_RUNTIMES = """
## Other runtimes

Each command writes files that are compared with this model before they are left behind:

```bash
{install}  # in a checkout of lexforge
{commands}
```
"""
_CITATION = """
## Citation

```bibtex
{citation}
```
"""


@dataclass(frozen=True)
class _Task:
    """What a card says of the task that a model was measured on."""

    hub_type: str
    hub_name: str
    dense_model: str  # what a dense model for it is
    results: str  # one sentence about the table of results


_TASKS = {
    "retrieval": _Task(
        "text-retrieval",
        "Retrieval",
        "a dense retriever",
        "All rows answer the queries of the split `{split}` of {data} over {measured:,} documents.",
    ),
    "similarity": _Task(
        "semantic-similarity",
        "Semantic Similarity",
        "a dense encoder of sentences",
        "All rows correlate the similarities with the scores of the {measured:,} pairs of the split "
        "`{split}` of {data}.",
    ),
    "labels": _Task(
        "text-classification",
        "Multi-label Classification",
        "a dense encoder of texts that have sets of labels",
        "All rows are measured on {measured:,} texts of the split `{split}` of {data}: F1 of a linear probe "
        "(`probe`), of the nearest label means (`centroid`) and of the classifier that the loss learned "
        "(`head`), and the mean average precision of finding texts that share a label (`label_map`).",
    ),
}
_TARGETS = {
    "onnx": "vectors, for onnxruntime",
    "onnx-pairs": "Anserini and Pyserini",
    "onnx-logits": "fastembed",
    "elasticsearch": "Elasticsearch",
    "opensearch": "OpenSearch",
}


@dataclass(frozen=True)
class CardFacts:
    """What a card says; what nobody stated is "unknown".

    Args:
        title: Name of the model.
        similarity: How its vectors are compared.
        base_model: What it was trained from: a name, or a folder of which the card shows the last part only.
        data: What it was trained and measured on: a name or a folder, as above.
        split: The split that it was measured on.
        measured: Number of documents that were searched, of pairs that were scored, or of texts that were
            classified.
        metrics: System ("bm25", "initial", "trained") to measure to value.
        training: Name to value of each setting of the training; folders are shown as above.
        citation: BibTeX of what the loss builds on; empty for none.
        teacher: The model whose scores it was distilled from; None for none.
        language: Code of the language (ISO 639-1), or "unknown".
        license: Identifier of the licence as the hub writes it, or "unknown".
        hub_name: `organisation/name` on the hub; None if the model is not there.
        inference_free: Whether queries are looked up in a table.
        numbers: Further groups of settings, such as those of the loss, by their heading.
        kind: Whether its vectors are sparse or dense.
        task: What it was measured on; a sparse model is a retriever.
    """

    title: str
    similarity: Similarity
    base_model: str
    data: str
    split: str
    measured: int
    metrics: Mapping[str, Mapping[str, float]]
    training: Mapping[str, Any]
    citation: str
    teacher: str | None = None
    language: str = UNKNOWN
    license: str = UNKNOWN
    hub_name: str | None = None
    inference_free: bool = False
    numbers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    kind: Literal["sparse", "dense"] = "sparse"
    task: Literal["retrieval", "similarity", "labels"] = "retrieval"


def write_card(folder: str | Path, facts: CardFacts) -> ModelCard:
    """Write the card of a saved model, in place of the one that was there.

    Args:
        folder: The folder of the model.
        facts: What the card says.

    Returns:
        The card, as the hub reads it.

    Raises:
        ValueError: If the measures of the trained model are missing, or if the hub could not read the card.
    """
    if "trained" not in facts.metrics:
        raise ValueError(f"a card needs the measures of 'trained'; received {sorted(facts.metrics)}")
    card = ModelCard(f"---\n{_metadata(facts).to_yaml()}\n---\n\n{_text(facts)}")
    read = card.data.to_dict()
    results = getattr(card.data, "eval_results", None) or []
    if len(results) != len(_measured(facts)) or read.get("license") != facts.license:
        raise ValueError(f"the hub would read other facts from the card than it states: {read}")
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
    if isinstance(name, Path) or path.exists() or path.is_absolute() or len(path.parts) > 2:
        return path.resolve().name
    return str(name)


def _metadata(facts: CardFacts) -> ModelCardData:
    """Return the head of the card, which the hub searches; a path or a word is no base model there."""
    base = facts.base_model if _on_hub(facts.base_model) else None
    data = facts.data.removeprefix("hf:") if facts.data.startswith("hf:") else None
    name = public_name(facts.data)
    sparse = facts.kind == "sparse"
    kind = ["sparse-encoder", "sparse", "splade"] if sparse else ["sentence-similarity", "dense"]
    results = [
        EvalResult(
            task_type=_TASKS[facts.task].hub_type,
            task_name=_TASKS[facts.task].hub_name,
            dataset_type=data or re.sub(r"[^\w.-]+", "-", name),
            dataset_name=name.removeprefix("hf:"),
            dataset_split=facts.split,
            metric_type=measure,
            metric_name=measure,
            metric_value=round(value, 5),
        )
        for measure, value in _measured(facts).items()
    ]
    return ModelCardData(
        language=None if facts.language == UNKNOWN else facts.language,
        license=facts.license,
        library_name="sentence-transformers",
        pipeline_tag="feature-extraction" if sparse else "sentence-similarity",
        tags=["sentence-transformers", *kind, "lexforge"],
        base_model=base,
        datasets=data,
        model_name=facts.title,
        eval_results=results,
    )


def _on_hub(name: str) -> bool:
    return bool(_HUB_NAME.fullmatch(name)) and not Path(name).exists()


def _measured(facts: CardFacts) -> dict[str, float]:
    """Return the measures of the trained model, each a number that JSON and YAML can hold."""
    return {name: float(value) for name, value in facts.metrics["trained"].items()}


def _text(facts: CardFacts) -> str:
    name = public_name(facts.data).removeprefix("hf:")
    teacher = "none" if facts.teacher is None else public_name(facts.teacher)
    base = public_name(facts.base_model)
    rows = {
        "base model": "none; a small encoder that starts as a bag of words" if base == "lexical" else base,
        "data": name,
        "language": facts.language,
        "licence": facts.license,
        "teacher": teacher,
        "similarity": facts.similarity,
    }
    sparse, task = facts.kind == "sparse", _TASKS[facts.task]
    load_name = facts.hub_name or facts.title
    code = _SPARSE_CODE if sparse else _DENSE_CODE if facts.task == "retrieval" else _TEXTS_CODE
    results_words = [task.results.format(split=facts.split, data=name, measured=facts.measured)]
    if sparse:
        words = "FLOPS is the expected number of multiplications for one query and one document."
        results_words.insert(0, words)
    use_words = "Queries and documents are encoded by their own methods: "
    if facts.inference_free:
        use_words += "a table of weights encodes queries, and a transformer documents."
    else:
        use_words += "both run the same transformer."
    groups = {"settings": facts.training, **facts.numbers}
    return _TEXT.format(
        title=facts.title,
        what="a neural sparse (SPLADE) retriever" if sparse else task.dense_model,
        vector="a vector of term weights over the vocabulary of the tokenizer"
        if sparse
        else "a vector of a fixed number of floats",
        similarity_words={"dot": "their dot product", "cosine": "their cosine"}[facts.similarity],
        facts=_rows(rows),
        results=_results(facts.metrics),
        results_words=" ".join(results_words),
        code=code.format(load_name=load_name, similarity=facts.similarity),
        use_words=use_words if facts.task == "retrieval" else "All texts are encoded alike.",
        runtimes=_runtimes(load_name, facts.title) if sparse else "",
        numbers="\n\n".join(
            f"| {heading} | |\n|---|---|\n{_rows({key: _shown(each) for key, each in values.items()})}"
            for heading, values in groups.items()
        ),
        citation=_CITATION.format(citation=facts.citation.strip()) if facts.citation else "",
    )


def _runtimes(load_name: str, title: str) -> str:
    """Return the section with the commands that export the model; dense models are not exported."""
    command = f"lexforge export model --model {load_name} --output {title}-export --target"
    commands = "\n".join(f"{command} {target}  # {use}" for target, use in _TARGETS.items())
    return _RUNTIMES.format(install=install_command("export"), commands=commands)


def _rows(values: Mapping[str, str]) -> str:
    return "\n".join(f"| {key} | {value} |" for key, value in values.items())


def _results(metrics: Mapping[str, Mapping[str, float]]) -> str:
    """Return a table with one row per system; a measure that a system lacks is a dash."""
    columns = list(dict.fromkeys(column for values in metrics.values() for column in values))
    head = [" ", *(_COLUMNS.get(column, column) for column in columns)]
    lines = [" | ".join(head), "|".join(["---"] + ["---:"] * len(columns))]
    for system, values in metrics.items():
        cells = [f"{values[column]:.4g}" if column in values else "–" for column in columns]
        lines.append(" | ".join([_ROWS.get(system, system), *cells]))
    return "\n".join(f"| {line} |" for line in lines)


def _shown(value: Any) -> str:
    """Return a setting as text, without folders and without what would break the table."""
    shown = public_name(value) if isinstance(value, Path) else str(value)
    return shown.replace("|", "\\|").replace("\n", " ")

"""Give the documents of a SPLADE encoder a wanted mean number of active terms, without training.

    lexforge trim MODEL --document-terms 32 --documents FOLDER --output TRIMMED
    lexforge trim MODEL --document-terms 32 --documents FOLDER --output TRIMMED --data FOLDER --idf-bias 0.2
    lexforge trim MODEL --document-terms 48 --max-active-dims 64 --documents FOLDER --output TRIMMED

MODEL is a saved SPLADE `SparseEncoder` or the checkpoint of a masked language model. Up to 3,000 documents
are drawn at random, with the same seed each time, and one level that gives them the wanted number is
subtracted from all logits. What is left of them is multiplied by a number that follows from the level.
Sentence-transformers loads TRIMMED as any other model. Queries get shorter too, unless they are looked up.

A text beyond the tokens that the model reads counts by its beginning. `lexforge index` and `lexforge adapt`
divide long documents into passages, the last of which are short: `--passages` counts and searches these.

`--idf-bias` is for a model that was trained on other documents: it makes terms that many of these documents
activate harder to activate, and rare ones easier, before the level is found.

`--max-active-dims` is the limit of sentence-transformers: no text, query or document, keeps more terms than
that. The wanted mean is then found with the limit in force, which TRIMMED keeps.

With `--data` the model is measured on judged queries before it is trimmed: as it is, and shifted by idf or
limited if asked to. For each number of `--curve` it is measured at the level, with `max_active_dims`, and
with a threshold on the activations. The split is `dev`; name another one by `--split`, and mind that a
number that was chosen on `test` cannot be judged there. The table is printed, and TRIMMED holds it as
trim.json and trim.svg.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import tyro

from lexforge import corpus, data, evaluation, export, models, report, runs, sparsity
from lexforge.commands.index import check_apart, read_library, tell_unknown_tokens
from lexforge.common.command_line import printable, refuse_unread
from lexforge.data.formats import detect, options_of
from lexforge.settings import NO_PREFIX, SourceOptions
from lexforge.sparsity.constants import SAMPLE
from lexforge.storage.files import check_new, new_directory, write_file

if TYPE_CHECKING:
    from sentence_transformers import SparseEncoder

    from lexforge.sparsity.curve import Setting

SEED = 0  # draws the documents that tell the mean
JSON, DRAWING = "trim.json", "trim.svg"
MEASURES = ("nDCG@10", "R@100")


@dataclass(frozen=True)
class Config:
    """What to trim, by which documents, and what to measure it on."""

    model: tyro.conf.Positional[str]  # a folder, a run directory or a name on the hub
    document_terms: int  # wanted mean number of active terms per document
    documents: str  # whose documents are counted: a folder in BEIR layout or another name that recipes take
    output: Path  # a new or empty folder
    idf_bias: float = 0.0  # shift of a term's logit per unit of its idf in the documents
    max_active_dims: int | None = None  # most terms of a text; None keeps the model's own limit
    passages: bool = False  # count and search passages of long documents, as `lexforge index` divides them
    data: str | None = None  # judged queries for the curve: a name as for --documents; None measures nothing
    split: str = "dev"  # of --data: whose queries are searched
    curve: tuple[int, ...] | None = None  # numbers of document terms; None is 16 to 128, as far as possible
    source: Annotated[SourceOptions, NO_PREFIX] = SourceOptions()
    max_seq_length: int | None = None  # tokens after which a text is cut; None keeps the model's own limit
    batch_size: int = 32  # texts per forward pass


def main(cfg: Config) -> None:
    """Find the level, measure if asked to, and save the trimmed model."""
    started = time.perf_counter()
    # What would fail later is checked before the data are read and the model is loaded.
    check_new(cfg.output)
    check_apart(cfg.output, cfg.documents)
    if cfg.data is None:
        refuse_unread(cfg, ["curve", "split"], "only the judged queries of --data are measured")
    for number in (cfg.document_terms, *(cfg.curve or ())):
        if number < 1:
            raise ValueError(f"--document-terms and --curve must be at least 1; received {number}")
    if not 0 <= cfg.idf_bias < math.inf:
        raise ValueError(f"--idf-bias must be finite and 0 or above; received {cfg.idf_bias}")
    if cfg.max_active_dims is not None and cfg.max_active_dims <= cfg.document_terms:
        raise ValueError(
            f"--max-active-dims must be above --document-terms {cfg.document_terms}, which is a mean; "
            f"received {cfg.max_active_dims}"
        )
    detect(cfg.documents)
    name = models.checked_name(cfg.model)
    if models.model_type(name) != "sparse":
        raise ValueError(
            f"only a SPLADE encoder can be trimmed; {cfg.model} is neither a saved SparseEncoder nor a "
            "masked language model with its head"
        )
    loaded = None
    if cfg.data is not None:
        loaded = data.load_retrieval_data(cfg.data, [cfg.split], source_options(cfg, cfg.data))

    model = cast("SparseEncoder", models.load_encoder(name, cfg.max_seq_length))  # by its files, see above
    sample, total = drawn_documents(cfg, model)
    judged = None if loaded is None else judged_queries(cfg, model, loaded)
    own_limit = model.max_active_dims
    model.max_active_dims = cfg.max_active_dims or own_limit
    numbers = [cfg.document_terms, *(numbers_of_curve(cfg, model) if judged else ())]
    for number in numbers:
        sparsity.check_trimming(model, number)
    model.max_active_dims = own_limit  # the model is first measured as it is
    before = None
    whole: Setting = "as it is"
    points: list[sparsity.CurvePoint] = []
    if cfg.idf_bias or cfg.max_active_dims is not None:  # what changes the model before its levels are found
        if judged is not None:
            points += sparsity.trimming_curve(model, judged, None, batch_size=cfg.batch_size)
        before = change_whole(cfg, model, sample)
        whole = "shifted by idf" if cfg.idf_bias else "limited"
    levels = sparsity.document_levels(model, sample, numbers, batch_size=cfg.batch_size)
    terms = {"document": {"before": levels.before if before is None else before}}
    if judged is not None:
        points += sparsity.trimming_curve(model, judged, levels, whole=whole, batch_size=cfg.batch_size)
        terms["query"] = {"before": points[0].measures["query_active_dims"]}
    terms["document"]["after"] = sparsity.lower_to_level(
        model, sample, levels, cfg.document_terms, batch_size=cfg.batch_size
    )
    if judged is not None:
        after = sparsity.mean_active_terms(model, {"query": judged.query_texts}, cfg.batch_size)
        terms["query"]["after"] = after["query"]
    counted = {"documents": len(sample), "of": total}
    _write(cfg, model, levels, terms, counted, points, started)
    if points:
        assert judged is not None
        print(f"{printable(str(cfg.data))}, {cfg.split}: {len(judged.query_ids)} queries")
        print(evaluation.metrics_table({_label(point): _renamed(point.measures) for point in points}))
    for kind, means in terms.items():
        print(f"terms per {kind}: {means['before']:.1f} before, {means['after']:.1f} after")
    if terms["document"]["after"] > terms["document"]["before"]:
        print("the model had fewer terms: weaker ones were added, which its training had suppressed")
    what = "passages" if cfg.passages else "documents"
    print(f"counted on {len(sample):,} of {total:,} {what}; {time.perf_counter() - started:.0f} seconds")
    print(f"{cfg.output} holds the trimmed model")


def source_options(cfg: Config, source: str) -> SourceOptions:
    """Return the options by which the documents or the judged data are read."""
    return options_of(source, cfg.source, cfg.documents, cfg.data)


def change_whole(cfg: Config, model: SparseEncoder, documents: list[str]) -> float:
    """Shift the bias by the idf of the documents and set the limit of terms, each where it is asked for.

    Returns:
        How many active terms the documents had on average before.
    """
    import numpy as np

    vectors = corpus.encode(model, documents, "document", batch_size=cfg.batch_size, show_progress_bar=True)
    if cfg.idf_bias:
        frequency = np.bincount(vectors.indices, minlength=vectors.shape[1])  # [V]
        models.shift_bias_by_idf(model, frequency, len(documents), cfg.idf_bias)
    if cfg.max_active_dims is not None:
        model.max_active_dims = cfg.max_active_dims
    return float(vectors.nnz / len(documents))


def judged_queries(
    cfg: Config, model: SparseEncoder, loaded: data.RetrievalData
) -> evaluation.RetrievalEvaluator:
    """Return the judged queries, with the documents or their passages."""
    divided = None
    if cfg.passages:
        name = str(cfg.data)
        divided = read_library(name, source_options(cfg, name), model, keep_all=True)
    return evaluation.RetrievalEvaluator(
        loaded.queries,
        loaded.corpus if divided is None else divided.passages,
        loaded.split(cfg.split),
        metrics=MEASURES,
    )


def drawn_documents(cfg: Config, model: SparseEncoder) -> tuple[list[str], int]:
    """The documents or passages that are counted, and the number of all."""
    import numpy as np  # here, because --help need not wait for it

    documents: Mapping[str, str]
    source = source_options(cfg, cfg.documents)
    if cfg.passages:
        documents = read_library(cfg.documents, source, model).texts
    else:
        documents = data.load_documents(cfg.documents, source)
        tell_unknown_tokens(model, list(documents.values()))
    ids = sparsity.some_texts(list(documents), SAMPLE, np.random.default_rng(SEED))
    return [documents[id] for id in ids], len(documents)


def numbers_of_curve(cfg: Config, model: SparseEncoder) -> list[int]:
    """The numbers of the curve besides the wanted one; those of the default that cannot be are left out."""
    if cfg.curve is not None:
        return [number for number in dict.fromkeys(cfg.curve) if number != cfg.document_terms]
    limit = min(models.vocabulary_size(model), model.max_active_dims or models.vocabulary_size(model))
    return [number for number in sparsity.CURVE if number < limit and number != cfg.document_terms]


def _write(
    cfg: Config,
    model: SparseEncoder,
    levels: sparsity.DocumentLevels,
    terms: dict[str, dict[str, float]],
    counted: dict[str, int],
    points: list[sparsity.CurvePoint],
    started: float,
) -> None:
    """Write the model, its card, the numbers and the drawing, all of them or none."""
    with new_directory(cfg.output) as folder:
        model.save_pretrained(str(folder), create_model_card=False)
        if model.max_active_dims is not None and not _keeps_limit(folder):
            raise ValueError(
                "this sentence-transformers does not save max_active_dims, so the model would lose its limit "
                f"of {model.max_active_dims}; version 6.2 does"
            )
        measured: dict[str, Any] = {}
        if points:
            found = {
                "before": points[0],
                "after": next(p for p in points if p.setting == "level" and p.wanted == cfg.document_terms),
            }
            metrics = {name: _renamed(point.measures) for name, point in found.items()}
            measured = {"metrics": metrics, "drawing": DRAWING}
            write_file(folder / DRAWING, _drawing(cfg, points).encode())
        settings = {
            key: str(value) if isinstance(value, Path) else value for key, value in asdict(cfg).items()
        }
        content = {
            "config": settings,
            "level": levels.levels[cfg.document_terms],
            "scale": levels.scales[cfg.document_terms],
            "counted": counted,
            "terms": terms,
            "curve": [asdict(point) for point in points],
            "seconds": time.perf_counter() - started,
        }
        export.write_trimmed_card(folder, content, command=runs.launch_command(), **measured)
        runs.write_json(folder / JSON, content)


def _keeps_limit(folder: Path) -> bool:
    """Whether a saved model names its largest number of terms."""
    saved = json.loads((folder / "config_sentence_transformers.json").read_text(encoding="utf-8"))
    return saved.get("max_active_dims") is not None


def _drawing(cfg: Config, points: list[sparsity.CurvePoint]) -> str:
    """The curves of nDCG@10 over terms per document and over FLOPS."""
    names = {"level": "level (trim)", "max_active_dims": "max_active_dims", "threshold": "threshold"}
    panels = []
    for cost, label in (("document_active_dims", "active terms per document"), ("flops", "FLOPS")):
        curves: dict[str, list[tuple[float, float]]] = {}
        single: dict[str, tuple[float, float]] = {}  # of a model that is not trimmed
        for p in points:
            place = p.measures[cost], p.measures["nDCG@10"]
            if not place[0]:  # no query shares a term with a document: a logarithmic scale has no 0
                continue
            if p.wanted is None:
                single[p.setting] = place
            else:
                curves.setdefault(names[p.setting], []).append(place)
        if curves or single:
            panels.append(report.Panel(f"over {label}", label, "nDCG@10", curves, single))
    text = "; ".join(
        f"{_label(p)}: nDCG@10 {p.measures['nDCG@10']:.4f}, {p.measures['document_active_dims']:.1f} terms "
        f"per document, FLOPS {p.measures['flops']:.3f}"
        for p in points
    )
    data_name = Path(str(cfg.data)).resolve().name  # `.` itself has no name
    title = f"{Path(cfg.model).resolve().name} on {data_name}, {cfg.split}: fewer terms by three settings"
    return report.draw_curves(title, panels, text)


def _label(point: sparsity.CurvePoint) -> str:
    return point.setting if point.wanted is None else f"{point.setting} {point.wanted}"


def _renamed(measures: dict[str, float]) -> dict[str, float]:
    """The measures under the heads of a table."""
    return {evaluation.MEASURE_NAMES.get(name, name): value for name, value in measures.items()}

"""Evaluate an encoder on a retrieval set: graded measures, sparsity, speed, a TREC run and a paired test.

    lexforge evaluate --model MODEL --data FOLDER --max-seq-length 128 --run run.trec
    lexforge evaluate --model MODEL --data FOLDER --compare OTHER_RUN
    lexforge evaluate --model MODEL --data FOLDER --passages

MODEL is a saved `SparseEncoder` or `SentenceTransformer`, or a bare masked language model, which becomes a
SPLADE encoder; a folder, a run directory or a name on the hub. FOLDER is in BEIR layout, or any other name
that the recipes take. The search is exact unless `--index` names an approximate index. `--compare` takes the
directory of a finished run, which must have been measured on the same data and is not encoded again, or a
TREC run of any system; a paired t-test over the queries tells whether the model differs from it. Texts beyond
the tokens that the model reads are cut; with `--passages` long documents are divided as `lexforge index`
divides them, and a document is as good as its best passage.
"""

from __future__ import annotations

import json as jsonlib
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from lexforge import corpus, data, evaluation, models, retrieval
from lexforge.commands.index import read_library
from lexforge.common.command_line import refuse_unread
from lexforge.data.splits import TEST
from lexforge.settings import NO_PREFIX, IndexName, SourceOptions, server_options
from lexforge.storage.files import check_output_file, write_text


@dataclass(frozen=True)
class Config:
    """What to evaluate, and which files to write."""

    model: str  # a folder, a run directory or a name on the hub
    data: str  # a folder in BEIR layout or another name that the recipes take
    split: str = "test"
    source: Annotated[SourceOptions, NO_PREFIX] = SourceOptions()
    index: IndexName | None = None  # None takes the exact index of the model's vectors
    uri: str | None = None  # for Milvus and Qdrant: http://host:port, or a name that ends in .db or .qdrant
    collection: str = "lexforge"  # for Milvus and Qdrant: name of a new collection
    k: int = 100  # documents that are retrieved per query
    metrics: tuple[str, ...] = evaluation.METRICS  # names of measures in ir-measures
    max_seq_length: int | None = None  # tokens after which a text is cut; None keeps the model's own limit
    batch_size: int = 32  # texts per forward pass
    passages: bool = False  # divide documents as `lexforge index` does; the best passage counts
    exclude_self: bool = False  # leave out a document whose id is the query's
    cache_dir: Path | None = None  # keeps the vectors of the corpus for the next evaluation of the model
    run: Path | None = None  # the run is written here, in TREC format
    json: Path | None = None  # measures, sparsity and timing are written here
    compare: Path | None = None  # another system over the same data: a run directory, or a TREC run


def compared_run(path: Path, cfg: Config, loaded: data.RetrievalData) -> Path:
    """Return the TREC run that `--compare` names: a file, or the one of a run directory.

    Args:
        path: A file, or the directory of a finished run.
        cfg: The settings of this evaluation.
        loaded: Its data.

    Returns:
        The file.

    Raises:
        FileNotFoundError: If a folder holds no such run.
        ValueError: If the run has searched other documents or by other queries: a sample of the documents,
            where every system finds more, or queries that another share was held out for.
    """
    if not path.is_dir():
        return path
    from lexforge.report.record import TRAINED, run_file  # here, because --help need not wait for it
    from lexforge.runs.run_directory import changed_data, read_json, recorded_data

    file = path / run_file(TRAINED)
    if not file.is_file():
        hint = ""
        if (path.parent / file.name).is_file():
            hint = f"; the folder above it is one: --compare {shlex.quote(str(path.parent))}"
        raise FileNotFoundError(
            f"{path} holds no {file.name}: it is no directory of a retrieval run that has measured its "
            f"model{hint}"
        )
    settings = read_json(path / "config.json") or {}
    remedy = (
        f"measure its model by this command with --model {shlex.quote(str(path))} --run other.trec in the "
        "place of --compare, and compare with other.trec"
    )
    sample = settings.get("eval_documents")
    if sample is not None:
        raise ValueError(
            f"{path} has searched a sample (--eval-documents {sample}), which is no comparison with all "
            f"documents; {remedy}"
        )

    # A query that was not searched would count as 0, and a document that was not searched hides no other.
    now = data.digests(loaded.searched_parts(cfg.split))
    before = {name: part for name, part in recorded_data(path).items() if name in now}
    if before.keys() != now.keys():
        raise ValueError(
            f"{path / 'env.json'} is missing, or an earlier version wrote it, so nothing says by which "
            f"queries the run was measured; {remedy}"
        )
    if differences := changed_data(before, now):
        differences += changed_options(settings, cfg)
        raise ValueError(
            f"{path} was measured on other data than this evaluation: {'; '.join(differences)}. Give the "
            f"data and the options of that run; or, if it was not trained on these queries, {remedy}"
        )
    return file


def changed_options(settings: Mapping[str, Any], cfg: Config) -> list[str]:
    """Say by which options the data of an evaluation differ from those of a run, a phrase for each.

    Args:
        settings: The settings of the run, as `config.json` holds them.
        cfg: Those of the evaluation.
    """
    before = {"data": settings.get("data"), "split": TEST, **settings.get("source", {})}
    now = {"data": cfg.data, "split": cfg.split, **asdict(cfg.source)}
    del now["weight_column"]  # weights change what is trained on, and nothing that is measured
    return [
        f"--{name.replace('_', '-')} was {before[name]} and is now {value}"
        for name, value in now.items()
        if name in before and before[name] != value
    ]


def main(cfg: Config) -> None:
    """Evaluate the model, print the results and write the files that were asked for."""
    # What would fail after the evaluation is checked before it.
    for flag, file in (("--run", cfg.run), ("--json", cfg.json)):
        if file is not None:
            check_output_file(file, flag)
    if cfg.run is not None and cfg.json is not None and cfg.run.resolve() == cfg.json.resolve():
        raise ValueError(f"--run and --json must name two files; received {cfg.run} for both")
    if cfg.uri is None:
        refuse_unread(cfg, ["collection"], "only an index at an address, --uri, has one")
    evaluation.check_metrics(cfg.metrics, cfg.k)
    loaded = data.load_retrieval_data(cfg.data, [cfg.split], cfg.source)
    qrels = loaded.split(cfg.split)
    if cfg.run is not None:
        evaluation.check_run_ids(qrels, loaded.corpus)
    other = None
    if cfg.compare is not None:
        if len(qrels) < 2:
            raise ValueError(
                "--compare makes a paired test, which needs at least two judged queries; the split "
                f"{cfg.split!r} has {len(qrels)}"
            )
        path = compared_run(cfg.compare, cfg, loaded)
        other = evaluation.read_run_of_split(path, loaded, cfg.split)
        for query, found in other.items():
            if cfg.exclude_self:  # as of the model, or it would look worse than it is
                found.pop(query, None)
            # As deep as the model's, or it would find more.
            other[query] = dict(sorted(found.items(), key=lambda item: -item[1])[: cfg.k])
    model = models.load_encoder(cfg.model, cfg.max_seq_length)
    evaluator = evaluation.RetrievalEvaluator(
        loaded.queries,
        read_library(cfg.data, cfg.source, model, keep_all=True).passages if cfg.passages else loaded.corpus,
        qrels,
        metrics=cfg.metrics,
        k=cfg.k,
        batch_size=cfg.batch_size,
        exclude_self=cfg.exclude_self,
        show_progress_bar=True,
        cache_dir=cfg.cache_dir,
    )
    if cfg.index is not None or cfg.uri is not None:
        options: dict[str, Any] = {**server_options(cfg.uri, cfg.collection, cfg.index)}
        backend = retrieval.find_backend(cfg.index, corpus.vector_type(model), options)
        evaluator.build_index = partial(backend.index.build, **backend.settings, **options)
    result = evaluator.evaluate(model)
    report: dict[str, dict[str, Any]] = {
        "metrics": result.metrics,
        "sparsity": result.sparsity,
        "timing": result.timing,
    }
    for values in report.values():
        for key, value in values.items():
            print(f"{key:24} {value:,.4f}")
    if other is not None:
        scores = evaluation.score_run(other, evaluator.qrels, cfg.metrics)
        compared = evaluation.compare_runs(scores, result.scores)
        print(f"\n{cfg.compare} -> {cfg.model}, with the 95 % interval of the difference:")
        for name, c in compared.items():
            print(
                f"{name:24} {c.first:.4f} -> {c.second:.4f}  {c.difference:+.4f} "
                f"({c.interval[0]:+.4f} to {c.interval[1]:+.4f})  p = {c.p_value:.4g}"
            )
        depth = max(map(len, other.values()), default=0)
        deeper = evaluation.measures_below(cfg.metrics, depth)
        most = min(cfg.k, len(loaded.corpus) - cfg.exclude_self)  # documents that can be ranked
        if deeper and depth < most:
            print(
                f"{cfg.compare} ranks at most {depth} documents per query. If it was cut there, what looks "
                f"deeper ({', '.join(deeper)}) favours the model, which ranks up to {most}"
            )
        if unranked := len(qrels.keys() - other.keys()):
            print(
                f"{cfg.compare} ranks nothing for {unranked} of the {len(qrels)} judged queries, which count "
                "as 0 for it"
            )
        report["comparison"] = {name: asdict(values) for name, values in compared.items()}
    if cfg.json is not None:
        text = jsonlib.dumps({"config": asdict(cfg), **report}, indent=1, default=str)
        write_text(cfg.json, text + "\n")
    if cfg.run is not None:
        evaluation.write_run(cfg.run, result.run)

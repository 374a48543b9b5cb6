"""Adapt a retriever to documents, without judged queries, and make an index of them.

    lexforge adapt --documents DOCUMENTS --model MODEL --output DIR
    lexforge adapt --documents DOCUMENTS --model MODEL --teacher sentence-transformers/all-MiniLM-L6-v2 \
        --document-terms 64 --output DIR

DOCUMENTS are a folder of texts, a file of rows, a folder in BEIR layout, or another name that the recipes
take. MODEL is a SPLADE, a masked language model, a dense model that sentence-transformers saved, or
`lexical`, which is built from the documents. Titles, sentences and keywords of the documents stand for
queries. Teachers score some documents for each of them, and the model learns to order these as they do.

DIR then holds the model (`model/`), an index (`index/`) that `lexforge search` and `lexforge serve` search,
the numbers (`adapt.json`), the settings and the log. If the adapted model is not better than its start on
queries that were held out, `model/` is the start, `rejected/` holds the adapted model, and the command ends
with the exit status 3. A masked language model retrieves nothing yet, so it is compared with BM25, and
`model/` is the adapted model in any case. What such a check can know is said by the page "Documents without
judged queries" of the documentation.
"""

from __future__ import annotations

import random
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from lexforge import adapt, corpus, data, evaluation, models, retrieval, runs, sparsity, teachers, training
from lexforge.commands.index import check_apart, read_library
from lexforge.common.command_line import refuse_unread
from lexforge.common.types import DataError, Passage, Run
from lexforge.data.columns import text_kind
from lexforge.data.formats import detect, options_of
from lexforge.settings import (
    ADAPT,
    ADAPT_SCRATCH,
    BACKBONE,
    BM25,
    FITTED_TEACHERS,
    LEXICAL,
    NO_PREFIX,
    START,
    FinishSettings,
    LossSettings,
    Preset,
    SourceOptions,
    TrainingSettings,
    check_wanted_terms,
    tokens_of_model,
)

if TYPE_CHECKING:
    from accelerate import PartialState
    from sentence_transformers import SentenceTransformer, SparseEncoder

NOT_BETTER = 3  # the exit status where the adapted model is not better
TRAINING = ADAPT.train.left_open()
HELD_OUT = 500  # pseudo-queries that the gate measures at most; mostly a tenth of those that there are
FEWEST = 20  # pseudo-queries, so that the gate has two, which is the least that a paired test compares
KEPT_TERMS = 0.75  # of the terms of documents that the start has: the teachers say which of them to keep
DEPTH = 100  # documents of a ranking that may become candidates, or --pool if that is more
ROW_DOCUMENTS = 4  # that a training row compares
SPARE_PASSAGES = 8  # times those of a batch, for batches in which none repeats


@dataclass(frozen=True)
class Config:
    """What to adapt, to which documents, and by which teachers."""

    documents: str
    """What is searched: a folder of texts (.txt, .md, .html, .pdf), a file of rows, a folder in BEIR layout,
    or `hf:organisation/name`."""

    model: str
    """The start: a SPLADE, a masked language model, a dense SentenceTransformer, or `lexical`."""

    output: Path
    """A new or empty folder."""

    teacher: tuple[str, ...] = ()
    """Who scores documents: `bm25`, `start` (the model itself), `lsa` or `lsa-char` (fitted on the documents,
    on words or on parts of them), the folders or hub names of dense models and cross-encoders. Several are
    averaged in units of their spread. Without any these are `start` and `bm25`, and a dense MODEL itself."""

    queries: Path | None = None
    """Real queries without judgements, such as a search log: a text file with one per line. They come first,
    and pseudo-queries fill up what training takes (steps times batch size). Of more than that, that many are
    drawn at random."""

    pseudo_queries: int = 6400
    """Number of queries that are taken from the documents for training at most, beside those that are held
    out, and no more than training takes beside the real ones; 0 trains on the real ones alone."""

    judged: str | None = None
    """Retrieval data with judged queries, which then decide whether the adapted model is better; its
    documents are divided as those of the index are, and each is as good as its best passage."""

    split: str = "dev"
    """The split of `judged`."""

    pool: int = 20
    """Documents that the teachers score for each query, at least 4; a cross-encoder costs by their number."""

    sample: int = 10_000
    """Passages that adaptation uses at most, drawn at random; the index holds all of them."""

    document_terms: int | None = None
    """Wanted mean number of active terms per document. None is three quarters of what the start has, 128 for
    a model that was not trained for SPLADE, and what the weight of FLOPS leaves for `lexical`."""

    resume: bool = False
    """Whether to continue the training in `output` from its last checkpoint."""

    language: str = "en"
    """Language of the stop words (ISO 639-1), or a .txt file with one stop word per line."""

    max_seq_length: int | None = None
    """Tokens of a passage; None is what the model was saved with, at most 256."""

    source: Annotated[SourceOptions, NO_PREFIX] = SourceOptions()

    train: Annotated[TrainingSettings, NO_PREFIX] = TRAINING


class Start(NamedTuple):
    """The encoder that is adapted, and the retriever that it comes from."""

    model: SparseEncoder
    retriever: SparseEncoder | SentenceTransformer | None  # the model itself, a dense one, or none
    loss: LossSettings
    finish: FinishSettings
    terms: dict[str, Any]  # the wanted numbers of an untrained head


class Asked(NamedTuple):
    """The real queries: those of `--queries` that training takes, and the data of `--judged`."""

    searched: list[str]
    judged: data.RetrievalData | None


class QuerySets(NamedTuple):
    """The queries of adaptation, and those that were held out for the gate."""

    queries: dict[str, str]
    own: dict[str, str]  # a pseudo-query -> the passage that it was taken from
    held: list[str]
    evaluators: dict[str, evaluation.RetrievalEvaluator]  # "held_out" and, if there are any, "judged" queries


def defaults(model: str | None = None) -> Config:
    """Return the settings that the command line changes; tyro asks for those that are missing."""
    from tyro import MISSING

    cfg = Config(documents=MISSING, model=MISSING if model is None else model, output=MISSING)
    return replace(cfg, train=ADAPT_SCRATCH.training_from_scratch().left_open()) if model == LEXICAL else cfg


def resolve(cfg: Config) -> Config:
    """Fill in what follows from the model: steps, learning rate, and the tokens of a passage."""
    model = cfg.model if isinstance(cfg.model, str) else None  # `--help` may know none
    train = preset_of(cfg).training_of(model, lambda: models.own_width(cfg.model))
    tokens = tokens_of_model(
        cfg.max_seq_length, model, lambda: models.default_tokens(cfg.model), scratch_tokens=384
    )
    return replace(cfg, train=cfg.train.with_defaults(train, tokens), max_seq_length=tokens)


def preset_of(cfg: Config) -> Preset:
    """Return the preset that the model takes."""
    return ADAPT_SCRATCH if cfg.model == LEXICAL else ADAPT


def main(cfg: Config) -> None:
    """Adapt the model, measure it, and make the index."""
    from lexforge.report.record import ADAPTATION_FILE  # here, because --help need not wait for torch

    check(cfg)
    process = runs.start_processes(cfg.train.seed)
    if process.num_processes > 1:
        raise ValueError(f"lexforge adapt runs in one process; received {process.num_processes} of them")
    stages = runs.Stages(process)
    models.check_model(cfg.model)
    for name in cfg.teacher:
        if name not in (*FITTED_TEACHERS, START):
            models.check_model(name)
    cfg = resolve(cfg)
    training.check_training(cfg.train)
    runs.check_run_directory(cfg.output, cfg)
    asked = read_asked(cfg)

    preset, scratch, seed = preset_of(cfg), cfg.model == LEXICAL, cfg.train.seed

    # Encoder and documents, of which a large collection gives a sample.
    model, library = read_documents(cfg, asked, process, stages)
    passages = sampled(library.passages, cfg.sample, seed)
    texts = {key: passage.joined for key, passage in passages.items()}
    documents = list(texts.values())
    print(f"{cfg.documents}: {len(library.passages)} passages, of which {len(passages)} are adapted to")
    start = prepare_start(cfg, preset, model, documents)

    # Teachers, because a model that is none is refused before anything is measured.
    if cfg.teacher:
        stages.begin("load the teachers")
    loaded = {
        name: teachers.load_teacher(name, documents) for name in cfg.teacher if name not in (BM25, START)
    }

    # Queries. Some pseudo-queries are held out for the gate, and real queries join the others.
    stages.begin("take queries from the documents")
    sets = take_queries(cfg, asked, model, passages, texts)
    training.check_full_batch(len(sets.queries), cfg.train, 1)  # a query gives one row at most

    # Before: what the start finds on the queries that were held out.
    stages.begin("measure the start")
    before = adapt.measure(start.retriever, sets.evaluators)
    terms = start.terms
    if cfg.document_terms is not None:
        terms = start.terms | {"document_terms": cfg.document_terms}
    elif not start.terms and not scratch:
        terms = {"document_terms": round(KEPT_TERMS * before["held_out"].sparsity["document_active_dims"])}

    # Rows. Teachers score the same candidates, and a row compares some of them over the range of the scores.
    stages.begin("score the candidates")
    names, scores = score_candidates(cfg, start.retriever, loaded, sets, texts)
    rows = adapt.listed_rows(texts, scores, sets.queries, ROW_DOCUMENTS, seed)
    refuse_few_rows(len(rows), len(sets.queries), cfg.train)
    print(f"{len(rows)} training rows of {ROW_DOCUMENTS} documents, scored by {', '.join(names)}")

    # Loss: the order of the teachers, and few terms.
    stages.begin("count the terms of the documents")
    loss = training.Terms.count(model, documents, cfg.language).loss(
        model, start.loss, mini_batch_size=cfg.train.mini_batch_size
    )
    if preset.start.idf_bias and not scratch:
        frequency, encoded = corpus.active_document_frequency(model, documents)
        models.shift_bias_by_idf(model, frequency, encoded, preset.start.idf_bias)

    # Training, on whole texts, as the teachers read them: the beginnings alone made the lexical backbone
    # worse. The passages of a small collection do not fill batches without a repetition, which the loss
    # leaves out.
    stages.begin("train")
    small = len(documents) < SPARE_PASSAGES * cfg.train.batch_size * ROW_DOCUMENTS
    arguments: dict[str, Any] = {"batch_sampler": "batch_sampler"} if small else {}
    if models.has_router(model):  # it must be told which columns hold queries and which hold documents
        arguments["router_mapping"] = {name: text_kind(name) for name in rows[0]}
    trainer = training.SpladeTrainer(
        model,
        loss,
        args=cfg.train.arguments(cfg.output, **arguments),
        callbacks=[training.QuarterSteps(cfg.train)],
        train_dataset=data.rows_to_dataset(rows),
        **cfg.train.encoder_options(),
        ramp_fraction=preset.loss.ramp_fraction,
        **asdict(start.finish),
        train_positions=not scratch,
        counted_texts={"document": documents, "query": sets.held},
        **terms,
    )
    trainer.train(resume_from_checkpoint=cfg.resume)

    # After: the gate, the model that it lets through, and what the command leaves behind.
    stages.begin("measure the adapted model")
    after = adapt.measure(model, sets.evaluators)
    verdict = adapt.judge(before, after, "the start" if start.retriever else "BM25")
    keep_and_index(cfg, start, library, stages, better=verdict.better)
    found = {"before": numbers_of(before), "after": numbers_of(after)}
    seconds = stages.end()
    settings = {"teachers": list(names), "rows": len(rows), "passages": len(library.passages)}
    runs.write_json(
        cfg.output / ADAPTATION_FILE,
        {**found, "verdict": asdict(verdict), **settings, "notes": library.notes, "stage_seconds": seconds},
    )
    for name in before:
        table = {verdict.against: found["before"][name], "the adapted model": found["after"][name]}
        print(f"\n{name.replace('_', ' ')} queries:\n{evaluation.metrics_table(table)}")
    print(f"\n{stages.table()}\n{verdict}")
    if caution := caution_of(start, verdict):
        print(caution)
    if not verdict.better:
        kept = "the start" if start.retriever else f"the adapted model, because {cfg.model} is no retriever"
        print(f"{cfg.output / 'model'} is {kept}")
    index = shlex.quote(str(cfg.output / "index"))
    print(f'lexforge search {index} "your words"')
    print(f"lexforge serve --index {index}")
    if not verdict.better:
        sys.exit(NOT_BETTER)


def caution_of(start: Start, verdict: adapt.Verdict) -> str:
    """Return why the verdict may be wrong about a dense start; "" where there is no such reason."""
    dense = start.retriever is not None and corpus.vector_type(start.retriever) == "dense"
    if not (dense and verdict.better) or verdict.judged:
        return ""
    return (
        "held-out pseudo-queries share the words of their passages, so they favour a sparse model over a "
        "dense start: only judged queries (--judged) tell whether it is better"
    )


def check(cfg: Config) -> None:
    """Refuse mistakes that show before torch is loaded, which takes seconds."""
    detect(cfg.documents)
    data.check_language(cfg.language)
    check_wanted_terms(document_terms=cfg.document_terms)
    check_apart(cfg.output, cfg.documents)
    if repeated := [name for name in dict.fromkeys(cfg.teacher) if cfg.teacher.count(name) > 1]:
        raise ValueError(
            f"--teacher takes each teacher once, and all of them count alike; received {' '.join(repeated)} "
            "several times"
        )
    if cfg.pseudo_queries < 0:
        raise ValueError(f"--pseudo-queries must be 0 or more; received {cfg.pseudo_queries}")
    if cfg.queries is None and not cfg.pseudo_queries:
        raise ValueError("--pseudo-queries 0 leaves no query to train on; give real ones by --queries")
    if cfg.judged is None:
        refuse_unread(cfg, ["split"], "it is the split of --judged")
    else:
        data.check_source(cfg.judged, [cfg.split], source_options(cfg, cfg.judged))
    if cfg.sample < 2:
        raise ValueError(f"--sample must be at least 2 passages; received {cfg.sample}")
    if cfg.pool < ROW_DOCUMENTS:
        raise ValueError(
            f"--pool must be at least the {ROW_DOCUMENTS} documents that a row compares; received {cfg.pool}"
        )


def source_options(cfg: Config, source: str) -> SourceOptions:
    """Return the options by which the documents or the judged data are read."""
    return options_of(source, cfg.source, cfg.documents, cfg.judged, lines=cfg.queries is not None)


def read_asked(cfg: Config) -> Asked:
    """Read the real queries, of which some are drawn at random where training takes no more.

    Raises:
        DataError: If the split of `--judged` has fewer than the two queries that a paired test compares.
    """
    searched = [] if cfg.queries is None else adapt.read_queries(cfg.queries, cfg.source)
    most, steps = most_queries(cfg.train), cfg.train.steps
    if most is not None and len(searched) > most:
        print(f"{most} of {len(searched)} real queries are used, at random: {steps} steps take no more")
        searched = random.Random(cfg.train.seed).sample(searched, most)
    if cfg.judged is None:
        return Asked(searched, None)
    judged = data.load_retrieval_data(cfg.judged, [cfg.split], source_options(cfg, cfg.judged))
    if (number := len(judged.split(cfg.split))) < 2:
        raise DataError(
            f"--judged decides by a paired test, which needs at least two judged queries; the split "
            f"{cfg.split!r} of {cfg.judged} has {number}"
        )
    return Asked(searched, judged)


def read_documents(
    cfg: Config, asked: Asked, process: PartialState, stages: runs.Stages
) -> tuple[SparseEncoder, data.Library]:
    """Load or build the encoder, and read the documents.

    The tokenizer of the encoder divides long documents into passages; an encoder that is built from the
    documents sees them whole first. The folder is claimed when the documents are known, because a run is not
    resumed over others.

    Returns:
        The encoder, and the documents.
    """
    scratch, whole = cfg.model == LEXICAL, dict[str, str]()
    source = source_options(cfg, cfg.documents)
    if scratch:
        stages.begin("read the documents")
        whole = data.load_library(cfg.documents, source).texts
        claim(cfg, asked, whole)
    model = training.load_start(cfg, cfg.output, list(whole.values()), process, stages, models.build_splade)
    for line in training.case_notes(model):
        print(line)
    models.decoder_biases(model)  # an error says early what has no bias to shift
    # Every start but the lexical one gets a wanted number, which may follow from what is measured.
    wanted = cfg.document_terms or (None if scratch else 1)
    sparsity.check_terms_of_model(model, document_terms=wanted)
    stages.begin("read the documents")
    library = read_library(cfg.documents, source, model)
    if not scratch:
        claim(cfg, asked, library.texts)
    return model, library


def prepare_start(
    cfg: Config,
    preset: Preset,
    model: SparseEncoder,
    documents: Sequence[str],
) -> Start:
    """Find the retriever that is to be improved: the SPLADE itself, or the dense model it was made of.

    A head that was not trained for SPLADE gets its scale here. An encoder that was saved with cosine is
    adapted by the dot product; if it is a retriever, it stays another one.
    """
    if cfg.model == LEXICAL or models.head_is_trained(model, documents):
        saved: SparseEncoder | SentenceTransformer = model
        if models.check_encoder(model) != preset.loss.similarity:
            saved = models.load_encoder(cfg.model, cfg.max_seq_length)
            model.similarity_fn_name = preset.loss.similarity
        return Start(model, saved, preset.loss, preset.finish, {})
    dense = models.model_type(models.checked_name(cfg.model)) == "dense"
    retriever = models.load_encoder(cfg.model, cfg.max_seq_length) if dense else None
    if START in cfg.teacher and retriever is None:
        raise ValueError(f"{cfg.model} is no retriever yet, so it cannot teach; leave out --teacher start")
    models.scale_head(model, documents)
    model.similarity_fn_name = preset.loss.similarity
    print(f"{cfg.model} was not trained for SPLADE: its head gets its scale from the documents")
    loss, finish = preset.start.of_untrained_head(preset.loss, preset.finish)
    terms = preset.start.wanted_terms(loss, models.vocabulary_size(model))
    return Start(model, retriever, loss, finish, terms)


def take_queries(
    cfg: Config,
    asked: Asked,
    model: SparseEncoder,
    passages: Mapping[str, Passage],
    texts: Mapping[str, str],
) -> QuerySets:
    """Take queries from the passages, hold some out for the gate, and join the real and the judged ones.

    Real queries come first: there are no more pseudo-queries for training than it takes beside them.
    """
    real, most, wanted = asked.searched, most_queries(cfg.train), cfg.pseudo_queries
    if most is not None:
        wanted = min(wanted, most - len(real))
    taken = adapt.pseudo_queries(passages, wanted + HELD_OUT, seed=cfg.train.seed)
    if len(taken) < FEWEST:
        raise DataError(
            f"{cfg.documents} gives {len(taken)} queries, taken from titles, sentences and keywords; at "
            f"least {FEWEST} are needed, a tenth of which is held out"
        )
    held, trained = adapt.hold_out(taken, passages, HELD_OUT, wanted)
    queries = {f"pseudo-{place}": one.text for place, one in enumerate(trained)}
    own = {f"pseudo-{place}": one.passage for place, one in enumerate(trained)}
    queries |= {f"real-{place}": text for place, text in enumerate(real)}
    print(f"{len(real)} real and {len(trained)} pseudo-queries for training, {len(held)} held out")
    held_queries = {f"held-{place}": one for place, one in enumerate(held)}
    gate = evaluation.RetrievalEvaluator(
        {key: one.text for key, one in held_queries.items()},
        texts,
        adapt.judgements(held_queries, passages),
        show_progress_bar=True,
    )
    evaluators = {"held_out": gate}
    if cfg.judged is not None and asked.judged is not None:
        passages_of_judged = read_library(
            cfg.judged, source_options(cfg, cfg.judged), model, keep_all=True
        ).passages
        evaluators["judged"] = evaluation.RetrievalEvaluator(
            asked.judged.split_queries(cfg.split),
            passages_of_judged,
            asked.judged.split(cfg.split),
            show_progress_bar=True,
        )
    return QuerySets(queries, own, [one.text for one in held], evaluators)


def most_queries(train: TrainingSettings) -> int | None:
    """Return the number of queries that the steps take; None if epochs are given, each of which takes all."""
    if train.steps is None:
        return None
    return train.steps * train.batch_size * train.gradient_accumulation_steps


def score_candidates(
    cfg: Config,
    retriever: SparseEncoder | SentenceTransformer | None,
    loaded: Mapping[str, teachers.Teacher],
    sets: QuerySets,
    texts: Mapping[str, str],
) -> tuple[tuple[str, ...], Run]:
    """Let each teacher score the candidates that BM25 and the retriever find.

    Returns:
        The names of the teachers, and the average of their scores. A query that gives no row is left out.
    """
    queries, gate = sets.queries, sets.evaluators["held_out"]
    words, depth = gate.bm25, max(DEPTH, cfg.pool)
    rankings = {BM25: words.search(list(queries.values()), depth).to_run(list(queries))}
    if retriever is not None:
        documents = gate.vectors(retriever)[1]
        index = retrieval.build_exact(documents, list(texts), models.check_encoder(retriever))
        vectors = corpus.encode(retriever, list(queries.values()), "query", show_progress_bar=True)
        rankings[START] = index.search(vectors, depth).to_run(list(queries))
    names = cfg.teacher or tuple(rankings)
    # A query with fewer candidates than a row compares gives none, so no teacher need score them.
    found = adapt.candidate_pools(list(rankings.values()), queries, sets.own, cfg.pool)
    pools = {query: pool for query, pool in found.items() if len(pool) >= ROW_DOCUMENTS}
    refuse_few_rows(len(pools), len(queries), cfg.train)
    kept = [place for place, query in enumerate(queries) if query in pools]
    queries = {query: queries[query] for query in pools}
    scores = []
    for name in names:
        if name == BM25:
            counts = words.query_vectors(list(queries.values()))
            scores.append(adapt.scores_in_index(words.index, counts, pools))
        elif name == START:
            scores.append(adapt.scores_in_index(index, vectors[kept], pools))
        else:
            scores.append(teachers.candidate_scorer(loaded[name], queries, texts)(pools))
    return names, teachers.average_in_spreads(scores)


def refuse_few_rows(rows: int, queries: int, train: TrainingSettings) -> None:
    """Refuse to train where too few queries give a row.

    Raises:
        DataError: If the rows do not fill one batch.
    """
    if rows < train.batch_size:
        raise DataError(
            f"{rows} of {queries} queries give a training row, and one batch needs {train.batch_size}. A "
            f"query gives one if BM25 and the start find {ROW_DOCUMENTS} documents for it which the teachers "
            "do not score all alike: give more queries, or lower the batch size"
        )


def keep_and_index(
    cfg: Config, start: Start, library: data.Library, stages: runs.Stages, *, better: bool
) -> None:
    """Save the adapted model, or the start if it is the better one, and index all passages by it."""
    kept: SparseEncoder | SentenceTransformer = start.model
    if not better and start.retriever is not None:
        training.save_model(start.model, cfg.output / "rejected")
        name = str(cfg.output / BACKBONE) if cfg.model == LEXICAL else cfg.model
        kept = models.load_encoder(name, cfg.max_seq_length)
    folder = cfg.output / "model"
    training.save_model(kept, folder)
    stages.begin("index all passages")
    if cfg.resume:  # of a command that was stopped after it, or has ended
        shutil.rmtree(cfg.output / "index", ignore_errors=True)
    corpus.index_passages(
        kept, library.passages, cfg.output / "index", name=str(folder), repeated=library.repeated
    )


def claim(cfg: Config, asked: Asked, texts: Mapping[str, str]) -> None:
    """Open the run directory, or go on in it if documents, queries and judgements are the same."""
    parts: dict[str, Iterable[Any]] = {"documents": texts.items()}
    if asked.searched:
        parts["queries"] = asked.searched
    if asked.judged is not None:
        found = asked.judged.searched_parts(cfg.split)
        parts |= {f"{name} of --judged": part for name, part in found.items()}
    runs.claim_run_directory(cfg.output, cfg, data=data.digests(parts))


def numbers_of(results: Mapping[str, evaluation.RetrievalResult]) -> dict[str, dict[str, float]]:
    """Return the measures and the sparsity of what was measured, by its name."""
    return {name: result.metrics | result.sparsity for name, result in results.items()}


def sampled(passages: Mapping[str, Passage], most: int, seed: int) -> dict[str, Passage]:
    """Return a random sample of the passages, in their order."""
    kept = set(random.Random(seed).sample(list(passages), min(most, len(passages))))
    return {key: passage for key, passage in passages.items() if key in kept}

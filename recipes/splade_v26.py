"""Train a SPLADE retriever with the seven-term loss of V26, and measure it on held-out queries.

    accelerate launch recipes/splade_v26.py

Without arguments the recipe trains a small encoder from scratch on the docstrings of the installed Python
packages. It needs no network. The published V26 run, on your own data (a folder in BEIR layout), is:

    accelerate launch recipes/splade_v26.py --preset v26 --data DIR --language ko \
        --model FacebookAI/xlm-roberta-base --teacher BAAI/bge-m3 --max-seq-length 192 --precision bf16 \
        --steps None --epochs 25 --batch-size 24 --gradient-accumulation-steps 4 --learning-rate 3e-5

`--preset` chooses the numbers of the loss, and each of them is also a flag, such as
`--loss.flops-weight 0.003`.

The run directory holds the settings (`config.json`), the versions and the machine (`env.json`), the measures
(`metrics.json`), the documents found for each test query (`run.trec`), the model (`model/`, which plain
sentence-transformers loads) and the checkpoints. `--resume` continues from the last checkpoint.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from lexforge import corpus, data, evaluation, export, losses, models, retrieval, runs, training
from lexforge.common.command_line import run_command

if TYPE_CHECKING:
    from accelerate import PartialState
    from datasets import Dataset

# Training takes a few minutes on two cores with these settings. The kind of model gives steps, warm-up and
# length (`with_defaults`), and the preset the learning rate. `TrainingSettings()` without arguments holds the
# settings of the published V26 run.
QUICK = training.TrainingSettings(
    batch_size=32, gradient_accumulation_steps=1, learning_rate=None, warmup_fraction=None, precision="fp32"
)
SOURCE = data.SourceOptions()

ONCE = 10**9  # epochs from one mining of negatives to the next: more than any run has


@dataclass(frozen=True)
class Config:
    """The settings of the run."""

    preset: training.PresetName = "lexforge-scratch"
    """The preset that gives the numbers of the loss; by default the one of the two of lexforge that suits the
    model: `lexforge` for a pretrained one, `lexforge-scratch` for the lexical backbone."""

    loss: training.Preset = training.PRESETS["lexforge-scratch"]
    """The numbers of the loss, by default those of the preset; docs/losses.md defines its terms."""

    data: str = "docstrings"
    """What to train and test on: `docstrings`; a folder in BEIR layout or of MS MARCO's files; rows of texts
    (.csv, .tsv, .parquet, .jsonl, also .gz and .zst), a folder of them by split or of `save_to_disk`; or
    `hf:organisation/name:configuration`."""

    source: Annotated[data.SourceOptions, tyro.conf.arg(name="")] = SOURCE

    model: str = "lexical"
    """A masked language model, or `lexical`: a small one built from the corpus, at first a bag of words."""

    teacher: str | None = None
    """Teacher of a preset that distils: a SentenceTransformer, `lsa-char` or `lsa`; None is `lsa`."""

    teacher_scores: Path | None = None
    """File in qrels format with the scores of a teacher, which replace the teacher."""

    teacher_cache: Path | None = None
    """Folder that keeps the embeddings of the teacher; None is a folder in the user's cache."""

    negatives: Literal["given", "none", "mined", "judged", "bm25"] | Path = "given"
    """Hard negatives: those `given` in rows of texts, and without any as the preset says; `none`; those
    `mined` by the model itself before the first step; `judged` not relevant; the best of `bm25`; or a file
    of scripts/mine_negatives.py."""

    negatives_per_row: int = 1
    """Number of negatives in each training row; a file of negatives has its own number."""

    negatives_shortage: Literal["random", "drop"] = "random"
    """What happens to a row with too few negatives: `random` documents fill it up, or it is dropped."""

    output_vocabulary: Literal["all", "seen"] = "all"
    """Terms that the model may use: `all`, or those `seen` in the corpus without the special tokens."""

    inference_free: bool = False
    """Whether queries are looked up in a table of idf weights instead of encoded."""

    language: str = "en"
    """Language of the stop words (ISO 639-1), or a .txt file with one stop word per line."""

    text_language: str = "unknown"
    """Language of the texts (ISO 639-1), for the model's card."""

    license: str = "unknown"
    """Licence of the model, as the Hugging Face hub writes it (apache-2.0, ...), for the model's card."""

    push_to_hub: str | None = None
    """`organisation/name`: the model is uploaded there, to a private repository if there is none yet."""

    output_dir: Path = Path("runs/splade_v26")
    """The run directory; it must be new or empty, unless the run is resumed."""

    resume: bool = False
    """Whether to continue the run in `output_dir` from its last checkpoint."""

    max_seq_length: int | None = None
    """Tokens per text, special tokens included; longer texts are cut. None is 128 from scratch, and what a
    pretrained model was saved with, at most 256. V26 has 192."""

    document_terms: int | None = None
    """Wanted mean number of active terms per document, which training holds; None leaves it to the loss."""

    query_terms: int | None = None
    """Wanted mean number of active terms per query, which training holds; None leaves it to the loss."""

    eval_documents: int | None = None
    """Documents that every evaluation searches: the judged ones and a random sample; None takes all."""

    evaluation: Annotated[training.EvaluationSettings, tyro.conf.arg(name="")] = field(
        default_factory=training.EvaluationSettings
    )

    train: Annotated[training.TrainingSettings, tyro.conf.arg(name="")] = QUICK


def with_defaults(cfg: Config, process: PartialState) -> Config:
    """Choose what the command line left open by the kind of model, and print each value with its reason."""
    settings, max_seq_length = training.with_defaults(
        cfg.train,
        cfg.max_seq_length,
        cfg.model,
        pretrained=training.KindDefaults(
            learning_rate=cfg.loss.learning_rate,
            steps=200,
            why_steps="the tables of recipes/README.md were measured with so many",
        ),
        scratch=training.KindDefaults(
            learning_rate=cfg.loss.scratch_learning_rate,
            steps=400,
            why_steps="it has everything to learn, and this takes a few minutes on two cores",
        ),
        say=process.print,
    )
    return replace(cfg, train=settings, max_seq_length=max_seq_length)


def check_options(cfg: Config, process: PartialState) -> None:
    """Refuse what would stop the run later, before any data is read."""
    data.check_teacher_options(
        cfg.teacher, cfg.teacher_scores, cfg.teacher_cache, needed=cfg.loss.needs_teacher
    )
    runs.check_run_directory(process, cfg.output_dir, cfg, resume=cfg.resume)
    if cfg.teacher is not None:
        data.check_teacher(cfg.teacher)
    data.check_language(cfg.language)
    training.check_reports(cfg.train.report_to)
    cfg.evaluation.check_measure(evaluation.METRICS)
    training.check_wanted_terms(document_terms=cfg.document_terms, query_terms=cfg.query_terms)
    if cfg.inference_free and cfg.query_terms is not None:
        raise ValueError(
            "--query-terms needs a query encoder, and --inference-free has none: a query has one active term "
            f"per distinct token. Leave --query-terms out; received {cfg.query_terms}"
        )
    if isinstance(cfg.negatives, Path):
        if cfg.teacher_scores is not None:
            raise ValueError(
                f"--teacher-scores names documents by id, and the rows of {cfg.negatives} have no ids; write "
                "the scores of each row into its column `label`"
            )
        if not cfg.negatives.is_file():
            raise FileNotFoundError(
                "--negatives must be given, none, mined, judged, bm25, or a file of "
                f"scripts/mine_negatives.py; received {str(cfg.negatives)!r}, and there is no such file"
            )


def build_bm25(loaded: data.RetrievalData) -> retrieval.BM25Index:
    """Index the documents of a set by BM25."""
    texts, ids = list(loaded.corpus.values()), list(loaded.corpus)
    return retrieval.BM25Index.build(texts, ids, show_progress_bar=True)


def load_rows(
    cfg: Config, loaded: data.TrainingData, bm25: retrieval.BM25Index
) -> list[dict[str, Any]] | Dataset:
    """Load the training rows: a query, a document that answers it, and its negatives, if any."""
    if isinstance(cfg.negatives, Path):
        return data.read_training_rows(cfg.negatives)
    if loaded.retrieval is None:
        return loaded.training_rows(negatives=cfg.negatives == "given")

    whole = loaded.retrieval
    negatives = None
    if cfg.negatives == "judged":
        negatives = data.judged_negatives(whole)
    elif cfg.negatives == "bm25":
        if len(bm25) < len(whole.corpus):  # it was built on the sample that is evaluated
            bm25 = build_bm25(whole)
        negatives = bm25.negatives(whole.split_queries("train"), whole.split("train"), k=50)

    scores = None
    if cfg.teacher_scores is not None:
        scores = data.load_teacher_scores(cfg.teacher_scores, whole)

    return data.training_rows(
        whole,
        "train",
        negatives,
        negatives_per_row=cfg.negatives_per_row,
        shortage=cfg.negatives_shortage,
        scores=scores,
    )


def mined_negatives(cfg: Config, loaded: data.TrainingData) -> training.MovingNegatives | None:
    """The negatives that the model mines before the first step, or None where the rows have theirs already.

    A negative stands among the first 50 documents of its query and scores at most 95 % of the positive's
    score, because a document that scores higher may well be an answer that nobody judged.
    """
    wanted = cfg.negatives == "mined" or (cfg.negatives == "given" and cfg.loss.mine_negatives)
    if not wanted or (loaded.retrieval is None and cfg.negatives == "given"):
        return None
    if loaded.retrieval is None:
        raise ValueError(f"--negatives mined needs a corpus with judgements; {cfg.data} holds rows of texts")
    if cfg.loss.needs_teacher:
        raise ValueError(
            "the teacher knows the texts of the training rows alone, and mined negatives are others: mine "
            "them by scripts/mine_negatives.py and give its file to --negatives, or give --negatives none"
        )
    rule = data.NegativeRule(
        per_row=cfg.negatives_per_row, last_rank=50, margin=0.05, shortage="random", seed=cfg.train.seed
    )
    return training.MovingNegatives(loaded.retrieval, rule, every_epochs=ONCE)


def card_facts(
    cfg: Config,
    loss: losses.NeuralSparseLoss,
    metrics: dict[str, dict[str, float]],
    searched: int,
    labelled: bool,
) -> export.CardFacts:
    """Collect what the card of the model says."""
    distils = cfg.loss.needs_teacher
    given = "scores in the training rows" if labelled else cfg.teacher or "lsa"
    teacher = given if cfg.teacher_scores is None else cfg.teacher_scores.name
    choices = ("preset", "negatives", "output_vocabulary", "inference_free", "max_seq_length")
    return export.CardFacts(
        title=(cfg.push_to_hub or cfg.output_dir.resolve().name).rsplit("/", 1)[-1],
        similarity=cfg.loss.similarity,
        base_model=cfg.model,
        data=cfg.data,
        split="test",
        documents=searched,
        metrics=metrics,
        training={name: getattr(cfg, name) for name in choices} | asdict(cfg.train),
        citation=loss.citation,
        teacher=teacher if distils else None,
        language=cfg.text_language,
        license=cfg.license,
        hub_name=cfg.push_to_hub,
        inference_free=cfg.inference_free,
        numbers={"loss": asdict(cfg.loss)},
    )


def main(cfg: Config) -> None:
    """Train a SPLADE retriever and compare it with BM25 and with itself before training."""
    import torch  # here, because --help need not wait for it

    # Processes. All of them train; only the main process measures and writes.
    process = runs.start_processes(cfg.train.seed)
    stages = runs.Stages(process)
    stages.begin("check the options")
    models.check_model(cfg.model)
    cfg = with_defaults(cfg, process)
    check_options(cfg, process)

    # Data. The train split gives the rows; the test split is measured before and after training, and the dev
    # split during training. All search the same documents, and so does BM25.
    stages.begin("read the data")
    measured_splits = ["test"] if cfg.evaluation.eval_steps is None else ["test", "dev"]
    with process.main_process_first():
        loaded = data.load_training_data(
            cfg.data,
            measured_splits,
            cfg.source,
            given_rows=cfg.negatives in ("given", "none") and cfg.teacher_scores is None,
            documents=cfg.eval_documents,
        )
    documents, measured = loaded.documents, loaded.measured
    evaluators = {
        split: evaluation.evaluator_of_split(measured, split, name="" if split == "test" else split)
        for split in measured_splits
    }
    evaluator = evaluators["test"]
    stages.begin("index the documents by BM25")
    bm25 = build_bm25(measured)
    stages.begin("make the training rows")
    rows = load_rows(cfg, loaded, bm25)
    training.check_full_batch(len(rows), cfg.train, process.num_processes)
    data.check_labelled_rows(cfg.teacher, rows, needed=cfg.loss.needs_teacher, cache=cfg.teacher_cache)
    if cfg.loss.triplet_margin_weight > 0 and "negative_1" not in rows[0]:
        raise ValueError(
            f"the triplet margin needs negatives, and the rows of {cfg.data} have none: give --negatives, or "
            "--loss.triplet-margin-weight 0"
        )
    moving = mined_negatives(cfg, loaded)
    process.print(
        f"{cfg.data}: {len(rows)} training rows, {len(evaluator.query_ids)} test queries, "
        f"{len(documents)} documents, {len(measured.corpus)} of them searched",
        flush=True,
    )

    # Teacher. Rows that carry the scores of a teacher in their column `label` need none.
    teacher_model = None
    if cfg.loss.needs_teacher and "label" not in rows[0]:
        stages.begin("load the teacher")
        with process.main_process_first():
            teacher_model = data.load_teacher(cfg.teacher or "lsa", documents)

    # Run directory. It is claimed only now, so that bad data or a wrong teacher leaves no folder behind.
    runs.claim_run_directory(process, cfg.output_dir, cfg, resume=cfg.resume)

    # Encoder. The preset also says how queries and documents are compared, by dot product or cosine. This is
    # saved with the model, and the loss, the evaluation and every index read it there.
    stages.begin("load the encoder" if cfg.model != models.LEXICAL else "build the encoder")
    with process.main_process_first():
        checkpoint = models.resolve_backbone(
            cfg.model,
            documents,
            cfg.output_dir / "backbone",
            max_seq_length=cfg.max_seq_length,
            seed=cfg.train.seed,
        )
    model = models.build_splade(
        checkpoint, max_seq_length=cfg.max_seq_length, similarity=cfg.loss.similarity, texts=documents
    )

    # Vocabulary. The sparsity penalty of the loss treats a term by its idf in the corpus, and it has rules of
    # its own for special tokens and stop words.
    stages.begin("count the terms of the documents")
    vocabulary_size = models.vocabulary_size(model)
    special_ids = models.special_token_ids(model.tokenizer)
    stopword_ids = data.stopword_ids(model.tokenizer, cfg.language)
    if process.is_main_process:
        print(data.stopword_summary(model.tokenizer, stopword_ids, cfg.language))
    idf = data.corpus_idf(documents, model.tokenizer, cfg.max_seq_length, vocabulary_size=vocabulary_size)

    # Options of the encoder: no term that the corpus lacks, and queries that need no encoder.
    if cfg.output_vocabulary == "seen":
        document_frequency = data.document_frequency(
            documents, model.tokenizer, cfg.max_seq_length, vocabulary_size=vocabulary_size
        )
        unseen_ids = models.unseen_term_ids(document_frequency)
        models.restrict_output_vocabulary(model, [*special_ids, *unseen_ids])
    if cfg.inference_free:
        model = models.build_inference_free(model, idf)

    # Evaluation before training, with BM25 on the same queries.
    metrics = {}
    if process.is_main_process:
        stages.begin("measure BM25")
        metrics["bm25"] = evaluation.evaluate_bm25(bm25, evaluator)
        if cfg.evaluation.initial_evaluation:
            stages.begin("measure the model before training")
            initial = evaluator.evaluate(model)
            metrics["initial"] = initial.metrics | initial.sparsity

    # Terms that nearly every document activates get a lower bias, and rare ones a higher one. The lexical
    # backbone has idf in its weights already.
    if cfg.loss.idf_bias and cfg.model != models.LEXICAL:
        stages.begin("count the active terms of the documents")
        frequency, encoded = corpus.active_document_frequency(model, documents)
        models.shift_bias_by_idf(model, frequency, encoded, cfg.loss.idf_bias)

    # Embeddings of the teacher. The main process computes those of all training texts once, and keeps them on
    # disk for the next run.
    teacher = None
    if teacher_model is not None:
        stages.begin("embed the texts by the teacher")
        with process.main_process_first():
            teacher = data.TeacherCache.build_for_rows(teacher_model, rows, cfg.teacher_cache)

    # Loss. The preset gives its numbers; the penalty of each term follows from the vocabulary above.
    loss = losses.NeuralSparseLoss(
        model,
        penalty_weights=cfg.loss.penalty_weights(torch.from_numpy(idf), special_ids, stopword_ids),
        special_token_ids=special_ids,
        gather_across_devices=process.num_processes > 1,
        **cfg.loss.loss_arguments(),
    )

    # Training. An inference-free model must be told which columns hold queries and which hold documents.
    stages.begin("train")
    train_dataset = data.rows_to_dataset(rows) if moving is None else moving.dataset
    routes = {}
    if cfg.inference_free:
        columns = train_dataset.column_names
        routes = {column: "query" if column == "anchor" else "document" for column in columns}
    trainer = training.SpladeTrainer(
        model,
        loss,
        args=cfg.train.arguments(
            cfg.output_dir,
            router_mapping=routes,
            **cfg.evaluation.arguments(),
            **training.hub_arguments(cfg.push_to_hub),
        ),
        train_dataset=train_dataset,
        evaluator=evaluators.get("dev"),
        callbacks=[
            *cfg.train.callbacks(),
            *cfg.evaluation.callbacks(),
            *([] if moving is None else [moving]),
        ],
        teacher=teacher,
        phases=cfg.loss.phases,
        ramp_fraction=cfg.loss.ramp_fraction,
        start_share=cfg.loss.start_share,
        prune_threshold=cfg.loss.prune_threshold,
        document_terms=cfg.document_terms,
        query_terms=cfg.query_terms,
    )
    trainer.train(resume_from_checkpoint=cfg.resume)
    if not process.is_main_process:
        return

    # Evaluation after training.
    stages.begin("measure the model after training")
    trained = evaluator.evaluate(model)
    metrics["trained"] = trained.metrics | trained.sparsity

    # What the run leaves behind: the model with its card, the numbers and the documents found. A table and
    # three searches are printed.
    stages.begin("write the results")
    model.save_pretrained(str(cfg.output_dir / "model"), create_model_card=False)
    facts = card_facts(cfg, loss, metrics, len(measured.corpus), labelled="label" in rows[0])
    export.write_card(cfg.output_dir / "model", facts)
    timing = trained.timing | {"stage_seconds": stages.end()}
    best = training.best_of(trainer.state)
    runs.write_json(cfg.output_dir / "metrics.json", metrics | {"timing": timing} | best)
    evaluation.write_run(cfg.output_dir / "run.trec", trained.run)
    print(evaluation.metrics_table(metrics))
    queries = list(measured.split_queries("test").items())
    print("\nThree searches of the test split (* marks a document that was judged relevant):")
    print(
        evaluation.example_searches(
            model, dict(queries[:3]), measured.corpus, trained.run, relevant=measured.split("test")
        )
    )
    print(f"\n{stages.table()}")
    print(f"{cfg.output_dir} holds the model, the numbers and the documents found.")
    if cfg.push_to_hub is not None:
        print(f"The model was uploaded to {training.push_model(trainer, cfg.output_dir / 'model')}")


def command() -> None:
    """Run `main`. The preset is read first, because its numbers are the defaults of `--loss.*`."""
    preset = training.preset_on_command_line()
    run_command(main, Config, __doc__, default=Config(preset=preset, loss=training.PRESETS[preset]))


if __name__ == "__main__":
    command()

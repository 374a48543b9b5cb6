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

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro

from lexforge import corpus, data, evaluation, models, runs, training
from lexforge.losses import NeuralSparseLoss
from lexforge.retrieval import BM25Index

# Training takes a few minutes on two cores with these settings; the preset gives the learning rate.
# `TrainingSettings()` without arguments holds the settings of the published V26 run.
QUICK = training.TrainingSettings(
    steps=400, batch_size=32, gradient_accumulation_steps=1, learning_rate=None, precision="fp32"
)


@dataclass(frozen=True)
class Config:
    """The settings of the run."""

    preset: training.PresetName = "lexforge"
    """Name of the preset that gives the numbers of the loss."""

    loss: training.Preset = training.PRESETS["lexforge"]
    """The numbers of the loss, by default those of the preset; docs/losses.md defines its terms."""

    data: str = "docstrings"
    """What to train and test on: `docstrings`, a folder in BEIR layout, or `hf:organisation/name`."""

    model: str = "lexical"
    """A masked language model, or `lexical`: a small one built from the corpus, at first a bag of words."""

    teacher: str | None = None
    """Teacher of a preset that distils: a SentenceTransformer, `lsa-char` or `lsa`; None is `lsa`."""

    teacher_scores: Path | None = None
    """File in qrels format with the scores of a teacher, which replace the teacher."""

    teacher_cache: Path | None = None
    """Folder that keeps the embeddings of the teacher; None is a folder in the user's cache."""

    negatives: Literal["none", "judged", "bm25"] | Path = "none"
    """Hard negatives: `judged` not relevant, the best of `bm25`, or a file of scripts/mine_negatives.py."""

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

    output_dir: Path = Path("runs/splade_v26")
    """The run directory; it must be new or empty, unless the run is resumed."""

    initial_evaluation: bool = True
    """Whether to measure the model before training too, for the table at the end."""

    resume: bool = False
    """Whether to continue the run in `output_dir` from its last checkpoint."""

    max_seq_length: int = 128
    """Tokens per text, special tokens included; longer texts are cut. V26 has 192."""

    train: Annotated[training.TrainingSettings, tyro.conf.arg(name="")] = QUICK


def load_rows(cfg: Config, retrieval: data.RetrievalData, bm25: BM25Index) -> list[dict[str, Any]]:
    """Load the training rows: a query, a document that answers it, and its negatives, if any."""
    if isinstance(cfg.negatives, Path):
        if cfg.teacher_scores is not None:
            raise ValueError(
                f"--teacher-scores names documents by id, and the rows of {cfg.negatives} have no ids; write "
                "the scores of each row into its column `label`"
            )
        if not cfg.negatives.is_file():
            raise FileNotFoundError(
                "--negatives must be none, judged, bm25, or a file of scripts/mine_negatives.py; received "
                f"{str(cfg.negatives)!r}, and there is no such file"
            )
        return data.read_training_rows(cfg.negatives)

    negatives = None
    if cfg.negatives == "judged":
        negatives = data.judged_negatives(retrieval)
    elif cfg.negatives == "bm25":
        negatives = bm25.negatives(retrieval.split_queries("train"), retrieval.split("train"), k=50)

    scores = None
    if cfg.teacher_scores is not None:
        scores = data.load_teacher_scores(cfg.teacher_scores, retrieval)

    return data.training_rows(
        retrieval,
        "train",
        negatives,
        negatives_per_row=cfg.negatives_per_row,
        shortage=cfg.negatives_shortage,
        scores=scores,
    )


def with_learning_rate(cfg: Config, say: Callable[[str], None]) -> Config:
    """Take the preset's learning rate for this kind of model, unless the command line gives one."""
    if cfg.train.learning_rate is not None:
        return cfg
    scratch = cfg.model == models.LEXICAL
    rate = cfg.loss.scratch_learning_rate if scratch else cfg.loss.learning_rate
    kind = "a model from scratch" if scratch else "a pretrained model, which a higher rate would ruin"
    say(f"learning rate {rate:g}: that of the preset {cfg.preset} for {kind} (--learning-rate changes it)")
    return replace(cfg, train=replace(cfg.train, learning_rate=rate))


def main(cfg: Config) -> None:
    """Train a SPLADE retriever and compare it with BM25 and with itself before training."""
    data.check_teacher_options(cfg.teacher, cfg.teacher_scores, needed=cfg.loss.needs_teacher)

    # Processes. All of them train; only the main process measures and writes.
    process = runs.start_processes(cfg.train.seed)
    cfg = with_learning_rate(cfg, process.print)

    # Data. The train split gives the rows, the test split the evaluation; both search the same corpus.
    retrieval = data.load_retrieval_data(cfg.data)
    documents = list(retrieval.corpus.values())
    bm25 = BM25Index.build(documents, list(retrieval.corpus))
    rows = load_rows(cfg, retrieval, bm25)
    training.check_full_batch(len(rows), cfg.train, process.num_processes)
    data.check_labelled_rows(cfg.teacher, rows, needed=cfg.loss.needs_teacher)
    if cfg.loss.triplet_margin_weight > 0 and "negative_1" not in rows[0]:
        raise ValueError(
            f"the triplet margin needs negatives, and the rows of {cfg.data} have none: give --negatives, or "
            "--loss.triplet-margin-weight 0"
        )
    evaluator = evaluation.evaluator_of_split(retrieval, "test")
    process.print(
        f"{cfg.data}: {len(rows)} training rows, {len(evaluator.query_ids)} test queries, "
        f"{len(documents)} documents",
        flush=True,
    )

    # Teacher. Rows that carry the scores of a teacher in their column `label` need none.
    teacher_model = None
    if cfg.loss.needs_teacher and "label" not in rows[0]:
        with process.main_process_first():
            teacher_model = data.load_teacher(cfg.teacher or "lsa", documents)

    # Run directory. It is claimed only now, so that bad data or a wrong teacher leaves no folder behind.
    runs.claim_run_directory(process, cfg.output_dir, cfg, resume=cfg.resume)

    # Encoder. The preset also says how queries and documents are compared, by dot product or cosine. This is
    # saved with the model, and the loss, the evaluation and every index read it there.
    with process.main_process_first():
        checkpoint = models.resolve_backbone(
            cfg.model,
            documents,
            cfg.output_dir / "backbone",
            max_seq_length=cfg.max_seq_length,
            seed=cfg.train.seed,
        )
    model = models.build_splade(checkpoint, max_seq_length=cfg.max_seq_length, similarity=cfg.loss.similarity)

    # Vocabulary. The sparsity penalty of the loss treats a term by its idf in the corpus, and it has rules of
    # its own for special tokens and stop words.
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

    # Evaluation before training.
    initial = evaluator.evaluate(model) if process.is_main_process and cfg.initial_evaluation else None

    # Terms that nearly every document activates get a lower bias, and rare ones a higher one. The lexical
    # backbone has idf in its weights already.
    if cfg.loss.idf_bias and cfg.model != models.LEXICAL:
        frequency, encoded = corpus.active_document_frequency(model, documents)
        models.shift_bias_by_idf(model, frequency, encoded, cfg.loss.idf_bias)

    # Embeddings of the teacher. The main process computes those of all training texts once, and keeps them on
    # disk for the next run.
    teacher = None
    if teacher_model is not None:
        with process.main_process_first():
            teacher = data.TeacherCache.build_for_rows(teacher_model, rows, cfg.teacher_cache)

    # Loss. The preset gives its numbers; the penalty of each term follows from the vocabulary above.
    loss = NeuralSparseLoss(
        model,
        penalty_weights=cfg.loss.penalty_weights(torch.from_numpy(idf), special_ids, stopword_ids),
        special_token_ids=special_ids,
        gather_across_devices=process.num_processes > 1,
        **cfg.loss.loss_arguments(),
    )

    # Training. An inference-free model must be told which columns hold queries and which hold documents.
    routes = {}
    if cfg.inference_free:
        routes = {column: "query" if column == "anchor" else "document" for column in rows[0]}
    trainer = training.SpladeTrainer(
        model,
        loss,
        args=cfg.train.arguments(cfg.output_dir, router_mapping=routes),
        train_dataset=data.rows_to_dataset(rows),
        teacher=teacher,
        phases=cfg.loss.phases,
        ramp_fraction=cfg.loss.ramp_fraction,
        start_share=cfg.loss.start_share,
        prune_threshold=cfg.loss.prune_threshold,
    )
    trainer.train(resume_from_checkpoint=cfg.resume)
    if not process.is_main_process:
        return

    # Evaluation after training, with BM25 on the same queries.
    trained = evaluator.evaluate(model)
    metrics = {"bm25": evaluation.evaluate_bm25(bm25, evaluator)}
    if initial is not None:
        metrics["initial"] = initial.metrics | initial.sparsity
    metrics["trained"] = trained.metrics | trained.sparsity

    # What the run leaves behind: the model, the numbers and the documents found. A table and three searches
    # are printed.
    model.save_pretrained(str(cfg.output_dir / "model"))
    runs.write_json(cfg.output_dir / "metrics.json", metrics | {"timing": trained.timing})
    evaluation.write_run(cfg.output_dir / "run.trec", trained.run)
    print(evaluation.metrics_table(metrics))
    queries = list(retrieval.split_queries("test").items())
    print("\nThree searches of the test split (* marks a document that was judged relevant):")
    print(
        evaluation.example_searches(
            model, dict(queries[:3]), retrieval.corpus, trained.run, relevant=retrieval.split("test")
        )
    )
    print(f"\n{cfg.output_dir} holds the model, the numbers and the documents found.")


def parse() -> Config:
    """Read the command line. The preset is read first, because its numbers are the defaults of `--loss.*`."""
    preset = training.preset_on_command_line(default="lexforge")
    return tyro.cli(Config, default=Config(preset=preset, loss=training.PRESETS[preset]), description=__doc__)


if __name__ == "__main__":
    main(parse())

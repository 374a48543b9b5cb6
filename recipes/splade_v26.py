"""Train a SPLADE retriever by any preset, and compare it with BM25 and with itself before training.

    accelerate launch recipes/splade_v26.py

Without arguments the recipe trains a small encoder from scratch on the docstrings of the installed Python
packages. It needs no network. On your own data (a folder in BEIR layout, a file of rows, a set of the hub):

    accelerate launch recipes/splade_v26.py --data DIR --model MODEL --document-terms 64

The loss has three terms by default: InfoNCE, FLOPS, and minimum activation. `--preset` chooses all numbers,
and most numbers of the loss are also flags, such as `--loss.flops-weight 0.003`. V26, after which the file is
named, has six terms. This command trains by the numbers of its notes:

    accelerate launch recipes/splade_v26.py --preset v26 --data DIR --language ko \
        --model FacebookAI/xlm-roberta-base --teacher BAAI/bge-m3 --max-seq-length 192 --precision bf16 \
        --steps None --epochs 25 --batch-size 24 --gradient-accumulation-steps 4 --learning-rate 3e-5

The run directory holds:

- `config.json`: the settings
- `env.json`: the versions and the machine
- `metrics.json`: the measures
- `log.jsonl`: the log
- `run.trec`: the documents found for each test query
- `model/`: the model, which plain sentence-transformers loads
- `report.html`: a page that shows all of it in a browser
- the checkpoints

`--resume` continues from the last checkpoint. `--plan` takes a few steps, tells what the run would take, and
writes nothing but caches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from lexforge import (
    corpus,
    data,
    evaluation,
    models,
    negatives,
    report,
    runs,
    sparsity,
    teachers,
    training,
)
from lexforge.common.command_line import run_recipe
from lexforge.data.columns import text_kind
from lexforge.settings import (
    LEXICAL,
    NO_PREFIX,
    PRESETS,
    EvaluationSettings,
    FinishSettings,
    LossSettings,
    NegativesName,
    PresetName,
    RecipeSettings,
    SourceOptions,
    StartSettings,
    TrainingSettings,
    Vocabulary,
    check_negatives,
    check_wanted_terms,
    find_preset,
    preset_of_model,
)

if TYPE_CHECKING:
    from accelerate import PartialState
    from datasets import Dataset
    from sentence_transformers import SparseEncoder

    from lexforge.common.types import Embeddings

LONGEST_FIRST_MEASURE = 180.0  # seconds to encode documents for a measure that training does not need
SCRATCH = PRESETS["lexforge-scratch"]
SCRATCH_TRAINING = SCRATCH.training_from_scratch().left_open()


@dataclass(frozen=True)
class Config(RecipeSettings):
    """The settings of the run."""

    preset: PresetName = "lexforge-scratch"
    """The preset that gives the numbers of all groups; by default the one that suits the model: `lexforge`
    for a pretrained one, `lexforge-scratch` for the lexical backbone, `bge-m3` for a folder of BGE-M3."""

    loss: LossSettings = SCRATCH.loss
    """The numbers of the loss, a weight for each of its terms."""

    start: StartSettings = SCRATCH.start
    """What becomes of the encoder before training."""

    finish: FinishSettings = SCRATCH.finish
    """What becomes of the trained weights."""

    data: str = "docstrings"
    """What to train and test on: `docstrings`, a folder in BEIR layout or of MS MARCO's files, rows of texts,
    or `hf:organisation/name:configuration`. Rows of texts are a file (.parquet; .csv, .tsv, .jsonl, also .gz
    and .zst), a folder of such files by split, or one of `save_to_disk`."""

    source: Annotated[SourceOptions, NO_PREFIX] = SourceOptions()

    model: str = "lexical"
    """A SPLADE encoder, a masked language model, a dense encoder or a decoder; `lexical`: a small encoder
    built from the corpus, at first a bag of words; or a model with the sparse head of BGE-M3 beside it, which
    is trained then."""

    teacher: str | None = None
    """Teacher of a preset that distils: `bm25`, `lsa-char`, `lsa`, a SentenceTransformer; or a CrossEncoder,
    a MultiVectorEncoder or a SPLADE encoder, which score the documents of each row, and so need negatives.
    None is that of the preset: `bm25` for lexforge, and for lexforge-scratch with a weight of distillation;
    `lsa` for the others."""

    teacher_scores: Path | None = None
    """File in qrels format with the scores of a teacher, which replace the teacher."""

    teacher_cache: Path | None = None
    """Folder that keeps the embeddings or scores of the teacher; None is a folder in the user's cache."""

    negatives: NegativesName | Path = "given"
    """Hard negatives: those `given` in rows of texts, `none`, those `mined` by the model itself before the
    first step, those `judged` not relevant, the best of `bm25`, or a file of `lexforge mine`. With judgements
    in place of rows of texts, `given` is what the preset says."""

    negatives_per_row: int = 1
    """Number of negatives in each training row, 3 in the preset `lexforge`; a file of negatives has its own
    number. Random documents fill up a row with too few."""

    output_vocabulary: Vocabulary = "all"
    """Terms that the model may use: `all`, or those `seen` in the corpus without the special tokens."""

    inference_free: bool = False
    """Whether queries are looked up in a table of idf weights instead of encoded."""

    language: str = "en"
    """Language of the stop words (ISO 639-1), or a .txt file with one stop word per line."""

    output_dir: Path = Path("runs/splade_v26")

    max_seq_length: int | None = None
    """Tokens per text, special tokens included; longer texts are cut. None is 384 from scratch, and what a
    pretrained model was saved with, at most 256. V26 has 192."""

    document_terms: int | None = None
    """Wanted mean number of active terms per document: training chooses the FLOPS weight for it, and its end
    makes it exact, within about 1 %. None leaves the number to that weight. If the head was not trained for
    SPLADE, or was made of the embeddings of a model that had none, the preset `lexforge` then wants 128, and
    40 per query."""

    query_terms: int | None = None
    """Wanted mean number of active terms per query. Training chooses the FLOPS weight of queries for it, and
    nothing makes it exact."""

    eval_documents: int | None = None
    """Documents that every evaluation searches: the judged ones and a random sample; None takes all."""

    evaluation: Annotated[EvaluationSettings, NO_PREFIX] = EvaluationSettings(
        initial_evaluation=False  # the lexical backbone starts as BM25, which is measured anyway
    )

    train: Annotated[TrainingSettings, NO_PREFIX] = SCRATCH_TRAINING


def defaults(model: str = LEXICAL, preset: PresetName | None = None) -> Config:
    """Return the settings of a run where the command line gives none: they follow its model and preset."""
    name = preset or preset_of_model(model)
    chosen = find_preset(name)
    cfg = Config(
        preset=name,
        loss=chosen.loss,
        start=chosen.start,
        finish=chosen.finish,
        model=model,
        negatives_per_row=chosen.data.negatives_per_row,
    )
    if model == LEXICAL:
        return replace(cfg, train=chosen.training_from_scratch().left_open())
    return replace(cfg, train=chosen.train.left_open(), evaluation=EvaluationSettings())


def resolve(cfg: Config) -> Config:
    """Fill in what follows from the model: steps, learning rate, and the tokens per text."""
    train = PRESETS[cfg.preset].training_of(cfg.model, lambda: models.own_width(cfg.model))
    return cfg.follow_model(train, lambda: models.default_tokens(cfg.model), scratch_tokens=384)


def check(cfg: Config) -> None:
    """Refuse mistakes that show before torch is loaded, which takes seconds."""
    cfg.evaluation.check_measure(evaluation.METRICS)
    data.check_source(cfg.data, ["train", *cfg.evaluation.splits], cfg.source)
    data.check_language(cfg.language)
    check_negatives(cfg.negatives, cfg.teacher_scores)
    defaults_per_row = (Config.negatives_per_row, PRESETS[cfg.preset].data.negatives_per_row)
    has_own_number = cfg.negatives == "none" or isinstance(cfg.negatives, Path)
    if has_own_number and cfg.negatives_per_row not in defaults_per_row:
        raise ValueError(
            f"--negatives-per-row {cfg.negatives_per_row} would be ignored: --negatives is {cfg.negatives}"
        )
    check_wanted_terms(
        document_terms=cfg.document_terms, query_terms=cfg.query_terms, inference_free=cfg.inference_free
    )
    if cfg.model == LEXICAL and cfg.start.idf_bias not in (0.0, PRESETS[cfg.preset].start.idf_bias):
        raise ValueError(
            f"--start.idf-bias {cfg.start.idf_bias} would be ignored: the lexical backbone has idf in its "
            "weights already"
        )
    of_preset = PRESETS[cfg.preset].loss
    unread = {"stopword_penalty": "--loss.idf-alpha is None"} if cfg.loss.idf_alpha is None else {}
    if not cfg.loss.distillation_weight:
        unread |= dict.fromkeys(("kl_weight", "mse_weight"), "--loss.distillation-weight is 0")
    if cfg.loss.phases:
        set_by = (
            f"the phases of the preset {cfg.preset} set it; give other phases in Python (LossSettings.phases)"
        )
        unread |= dict.fromkeys(("temperature", "infonce_weight", "distillation_weight"), set_by)
    for name, reason in unread.items():
        value = getattr(cfg.loss, name)
        if value and value != getattr(of_preset, name):  # a weight of 0 switches its term off
            raise ValueError(f"--loss.{name.replace('_', '-')} {value} would be ignored: {reason}")
    weights = cfg.loss.term_weights()
    for kind, wanted in (("document", cfg.document_terms), ("query", cfg.query_terms)):
        if wanted is not None and not weights[f"flops_{kind}"]:
            flag = {"document": "--loss.flops-weight", "query": "--loss.query-flops-weight"}[kind]
            raise ValueError(
                f"--{kind}-terms is reached by way of {flag}, which must be above 0 then; received "
                f"--{kind}-terms {wanted} and the weight 0"
            )
    teachers.check_teacher(
        cfg.teacher,
        PRESETS[cfg.preset].data.teacher,
        cfg.teacher_scores,
        cfg.teacher_cache,
        needed=cfg.loss.needs_teacher,
    )


def teacher_of(cfg: Config) -> str:
    """Return the name of the teacher: the one that was given, or that of the preset."""
    return cfg.teacher or PRESETS[cfg.preset].data.teacher


def negative_rule(cfg: Config, seed: int = 0) -> negatives.NegativeRule:
    """Return which documents become negatives."""
    return replace(negatives.NEGATIVE_RULE, per_row=cfg.negatives_per_row, seed=seed)


def make_rows(
    cfg: Config,
    loaded: data.TrainingData,
    evaluator: evaluation.RetrievalEvaluator,
    plan: training.Plan | None,
    process: PartialState,
) -> tuple[list[dict[str, Any]] | Dataset, NegativesName | Path]:
    """Make the training rows: a query, a document that answers it, and its negatives, if any.

    Returns:
        The rows, and where their negatives come from; `mined` ones come before the first step.
    """
    negatives_from = training.choose_negatives(
        cfg.negatives,
        PRESETS[cfg.preset].data.negatives,
        loaded,
        per_batch=cfg.train.batch_size * (1 + cfg.negatives_per_row),
        say=process.print,
    )
    if cfg.teacher_scores is not None and negatives_from not in ("judged", "bm25"):
        raise ValueError(
            "--teacher-scores scores the documents of each row, so the negatives must be known before: give "
            f"--negatives judged or --negatives bm25 with it; received --negatives {negatives_from}"
        )
    mined = negatives_from == "mined"
    taken = "bm25" if plan is not None and mined else negatives_from  # a plan mines none
    rows = training.load_rows(loaded, evaluator, taken, negative_rule(cfg), teacher_scores=cfg.teacher_scores)
    taught = cfg.loss.needs_teacher
    if taught and cfg.teacher_scores is None:
        rows = teachers.without_single_scores(rows, teacher_of(cfg), say=process.print)
    training.check_full_batch(len(rows), cfg.train, process.num_processes)
    cache = cfg.teacher_cache if plan is None else plan.cfg.teacher_cache  # that of a plan is its own
    teachers.check_taught_rows(cfg.teacher, rows, needed=taught, cache=cache, mined=mined)
    if not mined:
        training.check_triplet_rows(rows, cfg.loss.triplet_margin_weight, cfg.data)
    return (rows if plan is None else plan.some(rows)), negatives_from


def prepare_head(
    cfg: Config, model: SparseEncoder, documents: Sequence[str], process: PartialState
) -> Config:
    """Scale a head that was not trained for SPLADE, and return the settings for such a start.

    Such a head activates a large part of the vocabulary in every text. It gets another scale, so that
    training starts with few terms. A head that was made of embeddings needs wanted numbers of terms to stay
    at few, also where `lexforge adapt` has trained it.
    """
    made = not models.has_language_model_head(model)
    if cfg.model == LEXICAL or not (cfg.start.scale_head or made):
        return cfg
    trained = models.head_is_trained(model, documents)
    if trained and not made:
        return cfg
    if not trained:
        models.scale_head(model, documents)
        loss, finish = cfg.start.of_untrained_head(cfg.loss, cfg.finish)
        cfg = replace(cfg, loss=loss, finish=finish)
        process.print(
            f"{cfg.model} was not trained for SPLADE: its head gets its scale from the documents. It is no "
            "retriever yet, so the model at the end keeps no share of it. Weight of own activation: "
            f"{loss.own_activation_weight:g}"
        )
    if cfg.document_terms is None and cfg.query_terms is None:
        wanted: dict[str, Any] = cfg.start.wanted_terms(cfg.loss, models.vocabulary_size(model))
        # Queries that are looked up have one term per word.
        if cfg.inference_free or sparsity.looks_up_queries(model):
            wanted.pop("query_terms", None)
        cfg = replace(cfg, **wanted)
    for text, number in {"document": cfg.document_terms, "query": cfg.query_terms}.items():
        if number is not None:
            process.print(f"wanted terms per {text}: {number}")
    return cfg


def untaught(cfg: Config) -> Config:
    """Return the settings without distillation."""
    return replace(cfg, loss=replace(cfg.loss, distillation_weight=0.0))


def may_go_untaught(cfg: Config) -> bool:
    """Return whether the loss can do without the teacher of the preset.

    A loss that needs a teacher for more than distillation, or in a curriculum, keeps it in any case, and so
    does one in which nothing else ranks.
    """
    if not (cfg.loss.infonce_weight or cfg.loss.triplet_margin_weight):
        return False
    return cfg.teacher is None and not untaught(cfg).loss.needs_teacher and not cfg.loss.phases


def start_encoder(
    cfg: Config, loaded: data.TrainingData, process: PartialState, stages: runs.Stages
) -> tuple[Config, SparseEncoder]:
    """Load or build the encoder, and return it with the settings for such a start.

    The preset also says how queries and documents are compared, by dot product or cosine. This is saved with
    the model, and the loss, the evaluation and every index read it there.
    """
    build = partial(models.build_splade, similarity=cfg.loss.similarity)
    model = training.load_start(cfg, cfg.output_dir, loaded.documents, process, stages, build)
    if cfg.start.idf_bias or cfg.finish.prune_threshold or cfg.document_terms:
        models.decoder_biases(model)  # an error says early what has no bias to shift
    if process.is_main_process:
        for line in [*training.case_notes(model), *training.unknown_rows(model, loaded)]:
            print(line)
    cfg = prepare_head(cfg, model, loaded.documents, process)
    # The trainer refuses these too, but only after negatives are mined and the teacher has been asked.
    sparsity.check_terms_of_model(model, document_terms=cfg.document_terms, query_terms=cfg.query_terms)
    return cfg, model


def prepare_terms(
    cfg: Config, model: SparseEncoder, documents: Sequence[str], process: PartialState
) -> tuple[SparseEncoder, training.Terms]:
    """Count the terms of the documents, and build the encoder that the options for its terms ask for."""
    terms = training.Terms.count(model, documents, cfg.language)
    process.print(data.stopword_summary(model.tokenizer, terms.stopword_ids, cfg.language))
    if cfg.output_vocabulary == "seen":
        frequency = data.document_frequency(
            documents, model.tokenizer, model.max_seq_length, vocabulary_size=models.vocabulary_size(model)
        )
        unseen = (frequency == 0).nonzero()[0].tolist()
        models.restrict_output_vocabulary(model, [*terms.special_ids, *unseen])
    if cfg.inference_free and not sparsity.looks_up_queries(model):  # else the model has its table
        model = models.build_inference_free(model, terms.idf)
    return model, terms


def teach(
    cfg: Config,
    model: SparseEncoder,
    teacher: teachers.Teacher | None,
    rows: list[dict[str, Any]] | Dataset,
    process: PartialState,
    stages: runs.Stages,
) -> tuple[Config, list[dict[str, Any]] | Dataset, Embeddings | None, dict[str, float]]:
    """Let the teacher say what it finds of the rows, which is computed once and kept on the disk.

    BM25 as the teacher of the preset teaches only where it ranks better than the model.

    Returns:
        The settings and the rows from now on; what the collator looks texts up in; and nDCG@10 of training
        queries, if BM25 and the model were compared.
    """
    compared: dict[str, float] = {}
    if isinstance(teacher, teachers.BM25Teacher) and may_go_untaught(cfg):
        stages.begin("compare the model with BM25 on training queries")
        compared = evaluation.compare_with_bm25(model, rows)
        leads = compared["bm25"] > compared["model"]
        process.print(
            f"nDCG@10 of training queries: BM25 {compared['bm25']:.4f}, the model {compared['model']:.4f}, "
            f"so BM25 is {'the' if leads else 'no'} teacher"
        )
        if not leads:
            teacher, cfg = None, untaught(cfg)
    embeddings = None
    if teacher is not None:
        stages.begin("prepare the teacher")
        with process.main_process_first():
            rows, embeddings = teachers.teach_rows(teacher, rows, cfg.teacher_cache)
    return cfg, rows, embeddings, compared


def main(cfg: Config) -> None:
    """Train a SPLADE retriever and compare it with BM25 and with itself before training."""
    check(cfg)

    # All processes train; only the main process measures and writes.
    cfg, process, stages, plan = training.begin_run(cfg, resolve, "SparseEncoder")
    process.print(
        f"learning rate {cfg.train.learning_rate:g}, {cfg.max_seq_length} tokens per text: see --help"
    )

    # Data. The train split gives the rows; the test split is measured before and after training, and the dev
    # split during training. Rows that carry the scores of a teacher in their column `label` need none.
    stages.begin("read the data")
    given = cfg.negatives in ("given", "none") and cfg.teacher_scores is None
    loaded, evaluators = training.read_retrieval(cfg, process, given_rows=given)
    documents, searched = loaded.documents, loaded.measured.corpus
    evaluator = evaluators["test"]
    stages.begin("make the training rows")
    rows, negatives_from = make_rows(cfg, loaded, evaluator, plan, process)
    mines = negatives_from == "mined"
    taught_by = teachers.taught_by(teacher_of(cfg), cfg.teacher_scores, rows)
    teacher = None
    if cfg.loss.needs_teacher and "label" not in rows[0]:
        stages.begin("load the teacher")
        with process.main_process_first():
            teacher = teachers.load_teacher(teacher_of(cfg), documents)
    process.print(
        f"{cfg.data}: {len(rows) if plan is None else plan.rows} training rows, "
        f"{len(evaluator.query_ids)} test queries, {len(documents)} documents, "
        f"{len(searched)} of them searched",
        flush=True,
    )

    # Run directory. It is claimed only now, so that bad data or a wrong teacher leaves no folder behind.
    # A resumed run is refused if its data have changed.
    runs.claim_run_directory(cfg.output_dir, cfg, data=loaded.digests(rows))

    # Encoder, and what its vocabulary means in these documents.
    cfg, model = start_encoder(cfg, loaded, process, stages)
    stages.begin("count the terms of the documents")
    model, terms = prepare_terms(cfg, model, documents, process)

    # Evaluation before training, with BM25 on the same queries. A plan measures BM25 alone.
    record = report.RunRecord(cfg.output_dir)
    if process.is_main_process:
        stages.begin("measure BM25")
        record.add("bm25", evaluation.evaluate_bm25(evaluator))
        if cfg.evaluation.initial_evaluation:
            stages.begin("measure the model before training")
            result, found = evaluation.evaluate_within(
                LONGEST_FIRST_MEASURE, model, evaluator, loaded.measured
            )
            record.add("initial" if found == len(searched) else "initial_sample", result)

    # Terms that nearly every document activates get a lower bias, and rare ones a higher one. The lexical
    # backbone has idf in its weights already.
    if cfg.start.idf_bias and cfg.model != LEXICAL:
        stages.begin("count the active terms of the documents")
        frequency, encoded = corpus.active_document_frequency(model, documents)
        models.shift_bias_by_idf(model, frequency, encoded, cfg.start.idf_bias)

    # Negatives that the model mines itself, as it is before the first step, and the teacher's word on the
    # rows. A resumed run reads the file of the negatives.
    if mines and plan is None:
        stages.begin("mine the negatives")
        assert loaded.retrieval is not None  # rows of texts cannot be mined: `load_rows` refused them
        rule = negative_rule(cfg, seed=cfg.train.seed)
        rows = negatives.mine_once(model, loaded.retrieval, rule, cfg.output_dir / "mined.jsonl")
    cfg, rows, embeddings, compared = teach(cfg, model, teacher, rows, process, stages)

    # Loss. The preset gives its numbers; the penalty of each term follows from the vocabulary.
    loss = terms.loss(
        model,
        cfg.loss,
        gather_across_devices=process.num_processes > 1,
        mini_batch_size=cfg.train.mini_batch_size,
        teacher_similarity="cosine" if embeddings is None else embeddings.similarity,
    )

    # Training. A model with a Router must be told which columns hold queries and which hold documents.
    stages.begin("train")
    train_dataset = data.rows_to_dataset(rows)
    kinds = {name: text_kind(name) for name in train_dataset.column_names}
    trainer = training.SpladeTrainer(
        model,
        loss,
        train_dataset=train_dataset,
        evaluator=evaluators.get("dev"),
        teacher=embeddings,
        phases=cfg.loss.phases,
        ramp_fraction=cfg.loss.ramp_fraction,
        train_positions=cfg.model != LEXICAL,
        document_terms=cfg.document_terms,
        query_terms=cfg.query_terms,
        counted_texts={"document": documents, "query": loaded.other_queries()},
        **asdict(cfg.finish),
        **training.trainer_options(
            cfg,
            router_mapping=kinds if models.has_router(model) else {},
            **training.weighted_batches(loaded.weights if plan is None else None),  # their draw costs nothing
        ),
    )
    if plan is not None:
        told = plan.measure(
            trainer,
            documents,
            searched=len(searched) + len(evaluator.query_ids),
            first_seconds=LONGEST_FIRST_MEASURE,
            mines=mines,
            compares=bool(compared),
        )
        process.print(told)
        return
    trainer.train(resume_from_checkpoint=cfg.resume)
    if not process.is_main_process:
        return

    # The model is saved before anything else can fail.
    stages.begin("save the model")
    training.save_model(model, cfg.output_dir / "model")

    # Evaluation after training.
    stages.begin("measure the model after training")
    trained = evaluator.evaluate(model)
    record.add("trained", trained)
    stages.begin("measure it without its expansion")
    record.metrics["own_terms"] = evaluator.evaluate_own_terms(model)

    # What the run leaves behind: sample searches, the diagnosis, the card of the model, the numbers, and a
    # page.
    stages.begin("write the results")
    record.look_closer(model, evaluator, terms.stopword_ids)
    report.record_symptoms(cfg.output_dir, model, evaluator, idf=terms.idf, stopword_ids=terms.stopword_ids)
    examples = evaluation.example_searches(model, evaluator, trained.run)
    training.finish_run(
        cfg,
        trainer,
        stages,
        task="retrieval",
        measured=len(searched),
        metrics=record.metrics,
        settings={
            "preset": cfg.preset,
            "teacher": taught_by if cfg.loss.needs_teacher else "none",
            "negatives": negatives_from if "negative_1" in rows[0] else "none",
            "output vocabulary": cfg.output_vocabulary,
        },
        examples=f"\nThree searches of the test split (* marks a document judged relevant):\n{examples}",
        timing=trained.timing,
        wanted_terms={"document": cfg.document_terms, "query": cfg.query_terms},
        training_queries=compared,
    )


if __name__ == "__main__":
    run_recipe(main, defaults, __doc__, resolve=resolve)
    runs.leave_processes()

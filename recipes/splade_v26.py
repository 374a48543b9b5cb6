"""Train a SPLADE retriever with the seven-term loss of V26, and measure it on held-out queries.

    accelerate launch recipes/splade_v26.py

With no arguments it trains a small encoder from scratch on the docstrings of the installed Python packages,
offline. The published V26 run, on your own data (a folder in BEIR layout):

    accelerate launch recipes/splade_v26.py --preset v26 --data DIR --language ko \
        --model FacebookAI/xlm-roberta-base --teacher BAAI/bge-m3 --max-seq-length 192 --precision bf16 \
        --steps None --epochs 25 --batch-size 24 --gradient-accumulation-steps 4 --learning-rate 3e-5

`--preset` chooses the loss; every number of it is a flag, such as `--loss.flops-weight 0.003`. The run
directory holds `config.json`, `env.json`, `metrics.json`, `run.trec`, `model/` (plain sentence-transformers
loads it) and checkpoints; `--resume` continues from the last one.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, get_args

import torch
import tyro
from datasets import Dataset
from transformers import set_seed

from lexforge import data, evaluation, models, runs, training
from lexforge.losses import NeuralSparseLoss
from lexforge.retrieval import BM25Index

# A few minutes on two cores; `TrainingSettings()` are those of the published V26 run.
QUICK = training.TrainingSettings(
    steps=400, batch_size=32, gradient_accumulation_steps=1, learning_rate=2e-3, precision="fp32"
)


@dataclass(frozen=True)
class Config:
    """Settings of the run."""

    preset: training.PresetName = "lexforge"  # where the numbers of `loss` come from
    loss: training.Preset = training.PRESETS["lexforge"]
    data: str = "docstrings"  # `docstrings` (embedded), a folder in BEIR layout, or `hf:organisation/name`
    model: str = "lexical"  # a masked language model, or `lexical`: from scratch, starting as a bag of words
    teacher: str = "lsa"  # a SentenceTransformer; `lsa`, `lsa-char`: fitted on the corpus' words, characters
    teacher_scores: Path | None = None  # in qrels format; they, or `label` in a file, replace a teacher
    teacher_cache: Path | None = None  # embeddings of the teacher; None keeps them in the user's cache
    negatives: Literal["none", "judged", "bm25"] | Path = "none"  # or a file of scripts/mine_negatives.py
    negatives_per_row: int = 1  # of those judged not relevant, or BM25's best; a file has its own number
    negatives_shortage: Literal["random", "drop"] = "random"  # a row with too few: filled at random, left out
    output_vocabulary: Literal["all", "seen"] = "all"  # `seen`: terms of the corpus, no special token
    inference_free: bool = False  # queries by idf lookup, without the encoder
    language: str = "en"  # of the stop words (ISO 639-1), or a file with one a line
    output_dir: Path = Path("runs/splade_v26")  # must be new, unless `resume`
    resume: bool = False
    max_seq_length: int = 128  # tokens a text; V26: 192
    train: Annotated[training.TrainingSettings, tyro.conf.arg(name="")] = QUICK


def main(cfg: Config) -> None:
    """Data, encoder, teacher, training, evaluation."""
    process = runs.join_processes()
    set_seed(cfg.train.seed)
    if isinstance(cfg.negatives, Path) and cfg.teacher_scores is not None:
        raise ValueError(f"--teacher-scores is by ids, which {cfg.negatives} lacks; put `label` there")
    retrieval = data.load_retrieval_data(cfg.data)
    texts = list(retrieval.corpus.values())
    bm25 = BM25Index.build(texts, list(retrieval.corpus))
    scores = None if cfg.teacher_scores is None else data.load_teacher_scores(cfg.teacher_scores, retrieval)
    negatives = data.judged_negatives(retrieval) if cfg.negatives == "judged" else None
    if cfg.negatives == "bm25":
        negatives = bm25.negatives(retrieval.split_queries("train"), retrieval.split("train"), k=50)
    options = {"negatives_per_row": cfg.negatives_per_row, "shortage": cfg.negatives_shortage}
    mined = data.read_training_rows(cfg.negatives) if isinstance(cfg.negatives, Path) else None
    rows = mined or data.training_rows(retrieval, "train", negatives, scores=scores, **options)
    queries, judged = retrieval.split_queries("test"), retrieval.split("test")
    evaluation.check_run_ids(queries, retrieval.corpus)
    evaluator = evaluation.RetrievalEvaluator(queries, retrieval.corpus, judged)
    folder, lexical = cfg.output_dir, cfg.model == "lexical"
    length = {"max_seq_length": cfg.max_seq_length}
    source = folder / "backbone" if lexical else cfg.model
    if process.is_main_process:
        runs.open_run(folder, asdict(replace(cfg, resume=False)), resume=cfg.resume)
        if lexical and not (folder / "backbone").is_dir():
            models.build_lexical_backbone(texts, source, **length, seed=cfg.train.seed)
    process.wait_for_everyone()

    # The encoder, and what the corpus says of its vocabulary.
    model = models.build_splade(source, **length, similarity=cfg.loss.similarity)
    special = models.special_token_ids(model.tokenizer)
    corpus = length | {"vocabulary_size": models.vocabulary_size(model)}
    idf = data.corpus_idf(texts, model.tokenizer, **corpus)
    if cfg.output_vocabulary == "seen":
        frequency = data.document_frequency(texts, model.tokenizer, **corpus)
        models.restrict_output_vocabulary(model, {*special, *models.unseen_term_ids(frequency)})
    model = models.build_inference_free(model, idf) if cfg.inference_free else model
    routes = dict.fromkeys(rows[0], "document") | {"anchor": "query"} if cfg.inference_free else {}
    stopwords = data.stopword_ids(model.tokenizer, cfg.language)
    teacher = None
    if cfg.loss.distillation_weight and "label" not in rows[0]:
        with process.main_process_first():
            dense = data.load_teacher(cfg.teacher, texts)
            training_texts = (text for row in rows for text in row.values() if isinstance(text, str))
            teacher = data.TeacherCache.build(dense, training_texts, cfg.teacher_cache)
    initial = evaluator.evaluate(model) if process.is_main_process else None
    trainer = training.SpladeTrainer(
        model,
        NeuralSparseLoss(
            model,
            penalty_weights=cfg.loss.penalty_weights(torch.from_numpy(idf), special, stopwords),
            special_token_ids=special,
            gather_across_devices=process.num_processes > 1,
            **cfg.loss.loss_arguments(),
        ),
        args=cfg.train.arguments(folder, router_mapping=routes),
        train_dataset=Dataset.from_list(rows),
        teacher=teacher,
        phases=cfg.loss.phases,
        ramp_fraction=cfg.loss.ramp_fraction,
    )
    trainer.train(resume_from_checkpoint=cfg.resume)
    if initial is None:
        return
    trained = evaluator.evaluate(model)
    model.save_pretrained(str(folder / "model"))
    found = bm25.search(evaluator.query_texts, k=evaluator.k).to_run(evaluator.query_ids)
    metrics = {
        "bm25": evaluation.evaluate_run(found, judged),
        "initial": initial.metrics | initial.sparsity,
        "trained": trained.metrics | trained.sparsity,
    }
    runs.write_json(folder / "metrics.json", metrics | {"timing": trained.timing})
    evaluation.write_run(folder / "run.trec", trained.run)
    examples = dict(list(queries.items())[:3])
    print(evaluation.metrics_table(metrics))
    print(evaluation.example_searches(model, examples, retrieval.corpus, trained.run, relevant=judged))


def parse() -> Config:
    """The command line; `--preset` is read first, so that its numbers are the defaults of `--loss.*`."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--preset", default="lexforge", choices=get_args(training.PresetName))
    preset = first.parse_known_args()[0].preset
    return tyro.cli(Config, default=Config(preset=preset, loss=training.PRESETS[preset]), description=__doc__)


if __name__ == "__main__":
    main(parse())

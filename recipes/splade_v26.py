"""Train a neural sparse retriever (SPLADE) with the seven-term loss of V26, and measure it on held-out
queries.

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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

import torch
import tyro
from accelerate import PartialState
from datasets import Dataset
from transformers import set_seed

from lexforge import data, evaluation, models, training
from lexforge.losses import NeuralSparseLoss
from lexforge.retrieval import BM25Index


@dataclass(frozen=True)
class Config:
    """Settings of the run. V26 published other numbers than these defaults where a comment says so."""

    preset: training.PresetName = "lexforge"  # where the numbers of `loss` come from
    loss: training.Preset = training.PRESETS["lexforge"]
    data: str = "docstrings"  # `docstrings` (embedded), a folder in BEIR layout, or `hf:organisation/name`
    model: str = "lexical"  # a masked language model, or `lexical`: from scratch, starting as a bag of words
    teacher: str = "lsa"  # a SentenceTransformer, or `lsa`: fitted on the corpus; for distillation
    teacher_cache: Path | None = None  # embeddings of the teacher; None keeps them in the user's cache
    negatives: Literal["none", "judged", "bm25"] = "none"  # judged not relevant, or BM25's best non-positives
    negatives_per_row: int = 1
    output_vocabulary: Literal["all", "seen"] = "all"  # `seen`: terms of the corpus, no special token
    inference_free: bool = False  # queries by idf lookup, without the encoder
    language: str = "en"  # of the stop words (ISO 639-1), or a file with one a line
    output_dir: Path = Path("runs/splade_v26")  # must be new, unless `resume`
    resume: bool = False
    max_seq_length: int = 128  # tokens; V26: 192
    steps: int | None = 600  # optimizer steps; None counts epochs instead
    epochs: float = 25.0
    batch_size: int = 32  # rows a device and micro-batch; V26: 24
    gradient_accumulation_steps: int = 1  # V26: 4
    learning_rate: float = 1e-3  # peak of AdamW; V26: 3e-5
    weight_decay: float = 0.01
    warmup_fraction: float = 0.1
    max_gradient_norm: float = 1.0
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"  # V26: bf16
    save_steps: int = 200
    logging_steps: int = 20
    seed: int = 42


def main(cfg: Config) -> None:
    """Data, encoder, loss, training, evaluation."""
    process = PartialState()
    set_seed(cfg.seed)
    retrieval = data.load_retrieval_data(cfg.data)
    texts, ids = list(retrieval.corpus.values()), list(retrieval.corpus)
    bm25 = BM25Index.build(texts, ids)
    negatives = None if cfg.negatives == "none" else data.judged_negatives(retrieval)
    if cfg.negatives == "bm25":
        queries = retrieval.split_queries("train")
        best = dict(zip(queries, bm25.search(list(queries.values()), k=50).ids, strict=True))
        negatives = {
            query: [d for d in best[query] if d not in retrieval.split("train")[query]] for query in best
        }
    rows = data.training_rows(retrieval, "train", negatives, negatives_per_row=cfg.negatives_per_row)
    judged = retrieval.split("test")
    evaluator = evaluation.RetrievalEvaluator(retrieval.split_queries("test"), retrieval.corpus, judged)
    folder = cfg.output_dir
    if process.is_main_process:
        settings = {name: value for name, value in asdict(cfg).items() if name != "resume"}
        training.open_run(folder, settings, resume=cfg.resume)
    process.wait_for_everyone()

    # The encoder, and what the corpus says of its vocabulary.
    name = str(folder / "backbone") if cfg.model == "lexical" else cfg.model
    if cfg.model == "lexical" and process.is_main_process and not cfg.resume:
        models.build_lexical_backbone(texts, name, max_seq_length=cfg.max_seq_length, seed=cfg.seed)
    process.wait_for_everyone()
    model = models.build_splade(name, max_seq_length=cfg.max_seq_length, similarity=cfg.loss.similarity)
    special = models.special_token_ids(model.tokenizer)
    frequency = data.document_frequency(texts, model.tokenizer, cfg.max_seq_length)
    idf = data.corpus_idf(texts, model.tokenizer, cfg.max_seq_length)
    if cfg.output_vocabulary == "seen":
        models.restrict_output_vocabulary(model, {*special, *models.unseen_term_ids(frequency)})
    if cfg.inference_free:
        model = models.build_inference_free(model, idf)
    routes = dict.fromkeys(rows[0], "document") | {"anchor": "query"} if cfg.inference_free else {}
    stopwords = data.stopword_ids(model.tokenizer, cfg.language)
    penalty_weights = cfg.loss.penalty_weights(torch.from_numpy(idf), special, stopwords)
    teacher = None
    if cfg.loss.distillation_weight:
        lsa = cfg.teacher == "lsa"
        dense = data.LsaTeacher.fit(texts) if lsa else data.SentenceTransformerTeacher(cfg.teacher)
        cache = cfg.teacher_cache or data.cache_folder() / "teachers" / dense.name
        with process.main_process_first():
            teacher = data.TeacherCache.build(dense, [text for row in rows for text in row.values()], cache)

    initial = evaluator.evaluate(model) if process.is_main_process else None
    loss = NeuralSparseLoss(
        model,
        penalty_weights=penalty_weights,
        special_token_ids=special,
        gather_across_devices=process.num_processes > 1,
        **cfg.loss.loss_arguments(),
    )
    shared = ("steps", "epochs", "batch_size", "gradient_accumulation_steps", "learning_rate", "weight_decay")
    shared += ("warmup_fraction", "max_gradient_norm", "precision", "save_steps", "logging_steps", "seed")
    trainer = training.SpladeTrainer(
        model,
        loss,
        args=training.training_arguments(
            folder, router_mapping=routes, **{key: getattr(cfg, key) for key in shared}
        ),
        train_dataset=Dataset.from_list(rows),
        teacher=teacher,
        phases=cfg.loss.phases,
        ramp_fraction=cfg.loss.ramp_fraction,
    )
    trainer.train(resume_from_checkpoint=training.last_checkpoint(folder) if cfg.resume else None)
    if initial is None:
        return

    trained = evaluator.evaluate(model)
    model.save_pretrained(str(folder / "model"))
    evaluation.write_run(folder / "run.trec", trained.run)
    found = bm25.search(evaluator.query_texts, k=evaluator.k).to_run(evaluator.query_ids)
    metrics = {
        "bm25": evaluation.evaluate_run(found, judged),
        "initial": initial.metrics | initial.sparsity,
        "trained": trained.metrics | trained.sparsity,
    }
    training.write_json(folder / "metrics.json", metrics | {"timing": trained.timing})
    examples = dict(list(retrieval.split_queries("test").items())[:3])
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

"""One run of the stock trainer of sentence-transformers, or of no training, measured like a recipe's run.

    python scripts/bench/stock_splade.py --system stock --data ../shared/data/scifact \
        --model ../shared/models/splade-tiny --steps 200 --batch-size 32 --seed 1 --output-dir runs/stock

`stock` is `SparseEncoderTrainer` with `SpladeLoss(SparseMultipleNegativesRankingLoss)` and its documented
weights, 3e-5 for documents and 5e-5 for queries. `--miner` adds a negative to each row, by
`mine_hard_negatives` and a dense encoder. `start` trains nothing. `bench_presets.py` calls this.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from sentence_transformers import SentenceTransformer, SparseEncoder, SparseEncoderTrainer
from sentence_transformers.sparse_encoder.losses import SparseMultipleNegativesRankingLoss, SpladeLoss
from sentence_transformers.sparse_encoder.modules import SpladePooling, Transformer
from sentence_transformers.util import mine_hard_negatives

from lexforge import data, evaluation, models, negatives, runs, training


def stock_encoder(folder: str, length: int) -> SparseEncoder:
    """A masked language model as sentence-transformers makes a SPLADE encoder of it, on the CPU."""
    transformer = Transformer(folder, transformer_task="fill-mask", max_seq_length=length)
    return SparseEncoder(modules=[transformer, SpladePooling("max")], device="cpu")


def stock_loss(model: SparseEncoder) -> SpladeLoss:
    """The loss of sentence-transformers with its documented weights."""
    return SpladeLoss(
        model,
        SparseMultipleNegativesRankingLoss(model),
        document_regularizer_weight=3e-5,
        query_regularizer_weight=5e-5,
    )


def train(model: SparseEncoder, retrieval: data.RetrievalData, arguments: argparse.Namespace) -> None:
    """Train by the stock trainer; queries, positives, steps, batch and schedule are those of the recipe."""
    settings = training.TrainingSettings(
        steps=arguments.steps,
        batch_size=arguments.batch_size,
        gradient_accumulation_steps=1,
        learning_rate=arguments.learning_rate,
        precision="fp32",
        seed=arguments.seed,
    )
    # The stock trainer knows no column `relevant`: other answers to a query count as its negatives.
    rows = negatives.rows_of_judgements(retrieval)
    pairs = [{name: row[name] for name in ("anchor", "positive")} for row in rows]
    dataset = data.rows_to_dataset(pairs)
    if arguments.miner is not None:
        dataset = mine_hard_negatives(
            dataset,
            SentenceTransformer(arguments.miner),
            corpus=list(retrieval.corpus.values()),
            range_max=100,
            relative_margin=arguments.relative_margin,
            num_negatives=1,
            sampling_strategy="top",
        )
    SparseEncoderTrainer(
        model=model,
        loss=stock_loss(model),
        args=settings.arguments(arguments.output_dir, save_strategy="no"),
        train_dataset=dataset,
    ).train()


def main() -> None:
    """Run one system."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--system", choices=("start", "stock"), required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--max-seq-length", type=int, default=128)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--miner", help="dense encoder that finds a negative for each row")
    parser.add_argument("--relative-margin", type=float, help="of `mine_hard_negatives`, such as .05")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--output-dir", type=Path, required=True)
    arguments = parser.parse_args()
    process = runs.start_processes(arguments.seed)
    retrieval = data.load_retrieval_data(arguments.data)
    documents = list(retrieval.corpus.values())
    checkpoint = models.resolve_backbone(
        arguments.model,
        documents,
        arguments.output_dir / "backbone",
        max_seq_length=arguments.max_seq_length,
        seed=arguments.seed,
    )
    model = models.build_splade(checkpoint, max_seq_length=arguments.max_seq_length, similarity="dot")
    if arguments.system == "stock":
        train(model, retrieval, arguments)
    evaluator = evaluation.evaluator_of_split(retrieval, "test")
    result = evaluator.evaluate(model)
    metrics = {
        "bm25": evaluation.evaluate_bm25(evaluator).metrics,
        "trained": result.metrics | result.sparsity,
    }
    model.save_pretrained(str(arguments.output_dir / "model"))
    runs.write_json(arguments.output_dir / "metrics.json", metrics)
    evaluation.write_run(arguments.output_dir / "run.trec", result.run)
    process.print(evaluation.metrics_table(metrics))


if __name__ == "__main__":
    main()

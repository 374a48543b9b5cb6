"""Training and encoding by the size of the encoder: 4.4 to 560 million parameters, beside the stock trainer.

    python scripts/bench/bench_sizes.py --data ../shared/data/scifact --tiny ../shared/models/splade-tiny
    python scripts/bench/bench_sizes.py --data DIR --tiny DIR --sizes xlmr large --only train
    python scripts/bench/bench_sizes.py --data DIR --minilm DIR --sizes minilm --only run --run-steps 60
    python scripts/bench/bench_sizes.py --data DIR --tiny DIR --sizes tiny base --only largest

`lexforge` is `SpladeTrainer` with the loss of the preset lexforge, without a teacher and without wanted
numbers of terms. `sentence-transformers` is `SparseEncoderTrainer` with `SpladeLoss`. Both start from one
saved model, take the same rows (a query, an answer, and a document that answers no query), and step by AdamW.
A head that was not trained is scaled to about 150 active terms per text, with dropout where it is trained and
without where it encodes. Sizes without a folder have random weights and the tokenizer of `--tiny` or
`--minilm`, also where the vocabulary is larger.

Each measurement has a process of its own, which is killed when it holds more than `--memory-limit`, and
`lexforge` chooses the rows that it encodes at once as on a machine with so much memory. The first
step is no part of the times. Documents are encoded in float32, and with `--precision bf16` in bfloat16.
`--only run` times a whole run instead: loading, `--run-steps` steps, a search of all queries of the split
test by each side's own evaluator, and saving; its rows go to results/whole_run.csv. `--only largest` trains
two steps of ever larger batches, each twice the one before, until one does not fit or has `--most-rows`; its
rows go to results/largest_batch.csv. All other rows go to results/sizes.csv.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import shutil
import signal
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from common import SIZES, Size, append_rows, peak_mb, reset_peak
from sentence_transformers import SparseEncoder, SparseEncoderTrainer
from sentence_transformers.sparse_encoder.evaluation import SparseInformationRetrievalEvaluator
from stock_splade import stock_loss
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    TrainerCallback,
    XLMRobertaConfig,
    XLMRobertaForMaskedLM,
)

from lexforge import data, evaluation, losses, models, training
from lexforge.corpus import encode
from lexforge.losses import memory
from lexforge.models.structure import set_dropout
from lexforge.settings import EncodingPrecision

OURS, PEER = "lexforge", "sentence-transformers"
PARTS = ("train", "encode")
WHOLE_RUN, LARGEST = "run", "largest"  # which stand alone
FEWEST_ROWS = 4  # of a batch that is tried
ACTIVE_TERMS = 150  # per text, as a trained SPLADE encoder has
WARM = 8  # documents that warm up the encoding
TOLERANCE = 1e-4  # between two orders of float32 sums in up to 24 layers; activations are near 1


class Task(NamedTuple):
    """What a process trains."""

    folder: str
    side: str
    rows: list[dict[str, str]]
    batch_size: int
    length: int
    steps: int
    precision: str
    threshold: float  # what logits must exceed, see `threshold_in_training`
    memory_limit: float  # GB, as of a machine that has no more
    dropout: float | None  # None keeps that of the encoder


# Data and models


def read_texts(folder: str, most: int) -> tuple[list[dict[str, str]], list[str]]:
    """Up to `most` training rows of three texts, in which no text repeats, and all documents."""
    retrieval = data.load_retrieval_data(folder)
    judged = {key for grades in retrieval.qrels.values() for found in grades.values() for key in found}
    documents = dict.fromkeys(retrieval.corpus.values())
    for key in judged:
        documents.pop(retrieval.corpus[key], None)
    others, seen, rows = iter(documents), set[str](), []
    for query, grades in retrieval.split("train").items():
        anchor = retrieval.queries[query]
        positive = next((retrieval.corpus[key] for key, grade in grades.items() if grade > 0), anchor)
        if anchor == positive or {anchor, positive} & seen:
            continue
        negative = next(others, None)
        if negative is None or len(rows) == most:
            break
        seen |= {anchor, positive}
        rows.append({"anchor": anchor, "positive": positive, "negative_1": negative})
    return rows, list(retrieval.corpus.values())


def random_checkpoint(size: Size, tokenizer_folder: str, folder: str) -> None:
    """Save a masked language model with random weights, and a tokenizer with it."""
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    if len(tokenizer) > size.terms:
        raise ValueError(
            f"{tokenizer_folder} has {len(tokenizer)} tokens, above the {size.terms} of the model"
        )
    torch.manual_seed(0)
    shape: dict[str, Any] = {
        "vocab_size": size.terms,
        "num_hidden_layers": size.layers,
        "hidden_size": size.width,
        "num_attention_heads": size.heads,
        "intermediate_size": 4 * size.width,
        "pad_token_id": tokenizer.pad_token_id,
    }
    model: Any
    if size.terms == SIZES["xlmr"].terms:
        positions = 513 + tokenizer.pad_token_id  # counted from the one after padding
        model = XLMRobertaForMaskedLM(
            XLMRobertaConfig(
                **shape, max_position_embeddings=positions, type_vocab_size=1, layer_norm_eps=1e-5
            )
        )
    else:
        model = BertForMaskedLM(BertConfig(**shape))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def build(size: Size, given: str | None, tokenizer: str, texts: list[str], length: int, folder: str) -> dict:
    """Save the encoder that both sides start from, and count its parameters and active terms."""
    checkpoint = given or f"{folder}-random"
    if given is None:
        random_checkpoint(size, tokenizer, checkpoint)
    model = models.build_splade(checkpoint, max_seq_length=length, similarity="dot", device="cpu")
    some, threshold = texts[1 :: max(1, len(texts) // (2 * WARM))], 0.0
    if not models.head_is_trained(model, texts, sample=WARM):
        models.scale_head(model, texts, active_terms=ACTIVE_TERMS, sample=4 * WARM)
        threshold = threshold_in_training(model, some)
    vectors = encode(model, some, "document")
    model.save_pretrained(folder, create_model_card=False)
    if given is None:
        shutil.rmtree(checkpoint)
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "terms": models.vocabulary_size(model),
        "active_per_text": round(vectors.nnz / vectors.shape[0]),
        "threshold": threshold,
    }


@torch.no_grad()
def threshold_in_training(model: SparseEncoder, texts: list[str]) -> float:
    """What logits must exceed so that texts have `ACTIVE_TERMS` under dropout, which adds many terms."""
    model.train()
    rows = [model(model.preprocess([text]))["sentence_embedding"][0] for text in texts]  # [V] each
    model.eval()
    return float(torch.cat(rows).topk(ACTIVE_TERMS * len(texts)).values[-1].expm1())  # of log1p(logit)


def load(folder: str, side: str, length: int) -> SparseEncoder:
    """Load the saved encoder as each side does."""
    if side == OURS:
        return models.build_splade(folder, max_seq_length=length, device="cpu")
    model = SparseEncoder(folder, device="cpu")
    model.max_seq_length = length
    return model


# Measurements, each in a process of its own


class Clock(TrainerCallback):
    """Remembers when each step ended, by the wall and by the processor."""

    def __init__(self) -> None:
        self.wall: list[float] = []
        self.cpu: list[float] = []

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        """A step is over, the optimizer's included."""
        self.wall.append(time.perf_counter())
        self.cpu.append(time.process_time())


def make_trainer(task: Task, model: SparseEncoder, output_dir: str, callback: TrainerCallback) -> Any:
    """The trainer of a side: the same rows, schedule and optimizer, and each side's own loss."""
    preset = training.PRESETS["lexforge"]
    settings = replace(
        preset.train,
        steps=task.steps,
        batch_size=task.batch_size,
        learning_rate=preset.learning_rate_of(models.own_width(task.folder)),
        precision=task.precision,
        logging_steps=1,
    )
    common: dict[str, Any] = {
        "model": model,
        "args": settings.arguments(output_dir, save_strategy="no"),
        "train_dataset": data.rows_to_dataset(task.rows),
        "callbacks": [callback],
    }
    if task.side == PEER:
        return SparseEncoderTrainer(loss=stock_loss(model), **common)
    numbers = replace(preset.loss, distillation_weight=0.0)  # no teacher
    # An encoder whose head was scaled keeps no share of its start, as in the recipe.
    return training.SpladeTrainer(
        loss=losses.NeuralSparseLoss(model, mini_batch_size=settings.mini_batch_size, **numbers.arguments()),
        fastest_precision=settings.precision == "auto",
        dropout=settings.dropout,
        phases=numbers.phases,
        ramp_fraction=numbers.ramp_fraction,
        prune_threshold=preset.finish.prune_threshold,
        average_horizon=preset.finish.average_horizon,
        **common,
    )


def prepare(task: Task, output_dir: str, clock: Clock) -> tuple[SparseEncoder, Any]:
    """The encoder and the trainer of a side, for which the machine has as much memory as the limit says."""
    model = models.lower_bias(load(task.folder, task.side, task.length), task.threshold)
    if task.dropout is not None:
        set_dropout(model, task.dropout)
    memory.free_memory = lambda device: int(task.memory_limit * 1e9 - reset_peak() * 1e6)
    return model, make_trainer(task, model, output_dir, clock)


def train(task: Task) -> dict[str, Any]:
    """Train a few steps; time and peak memory of one."""
    clock = Clock()
    with tempfile.TemporaryDirectory() as output_dir:
        _, trainer = prepare(task, output_dir, clock)
        before = reset_peak()
        trainer.train()
        peak = peak_mb()
    found = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    if len(found) != task.steps or not all(map(math.isfinite, found)):
        raise RuntimeError(f"{task.side}: {task.steps} finite losses were due; received {found}")

    def per_step(ends: list[float]) -> float:
        return round(statistics.median(after - start for start, after in pairwise(ends)), 3)

    return {
        "seconds_per_step": per_step(clock.wall),
        "cpu_seconds_per_step": per_step(clock.cpu),
        "peak_gb": round(peak / 1e3, 2),
        "peak_above_model_gb": round((peak - before) / 1e3, 2),
    }


def whole_run(task: Task, data_folder: str) -> dict[str, Any]:
    """Load, train, search the test queries and save; the time of all, and the memory up to the end of
    training.
    """
    started, cpu, before = time.perf_counter(), time.process_time(), reset_peak()
    with tempfile.TemporaryDirectory() as output_dir:
        model, trainer = prepare(task, output_dir, Clock())
        loaded = time.perf_counter()
        trainer.train()
        trained, peak = time.perf_counter(), peak_mb()
        found = search_test_queries(model, task.side, data.load_retrieval_data(data_folder))
        model.save_pretrained(output_dir)
    return {
        "seconds": round(time.perf_counter() - started, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
        "training_seconds": round(trained - loaded, 1),
        "training_peak_gb": round(peak / 1e3, 2),
        "training_peak_above_start_gb": round((peak - before) / 1e3, 2),
        **found,
    }


def search_test_queries(model: SparseEncoder, side: str, task: data.RetrievalData) -> dict[str, float]:
    """nDCG@10 on the split test and mean numbers of terms, by each side's own evaluator."""
    if side == OURS:
        result = evaluation.evaluator_of_split(task, "test").evaluate(model)
        return {
            "nDCG@10": round(result.metrics["nDCG@10"], 4),
            "document_terms": round(result.sparsity["document_active_dims"], 1),
            "query_terms": round(result.sparsity["query_active_dims"], 1),
        }
    relevant = {
        query: {key for key, grade in grades.items() if grade > 0}
        for query, grades in task.split("test").items()
    }
    found = SparseInformationRetrievalEvaluator(
        {query: task.queries[query] for query in relevant}, dict(task.corpus), relevant, write_csv=False
    )(model)
    return {
        "nDCG@10": round(found["dot_ndcg@10"], 4),
        "document_terms": round(found["corpus_active_dims"], 1),
        "query_terms": round(found["query_active_dims"], 1),
    }


def encode_documents(
    folder: str, side: str, texts: list[str], length: int, batch_size: int, bf16: bool
) -> dict[str, Any]:
    """Documents that a side encodes per second; in float32 ours must have the vectors of plain modules."""
    model = load(folder, side, length)

    def run(some: list[str]) -> Any:
        if side == OURS:
            precision: EncodingPrecision = "bf16" if bf16 else "fp32"
            return encode(model, some, "document", batch_size=batch_size, precision=precision)
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            return model.encode(some, batch_size=batch_size, show_progress_bar=False)

    warm = run(texts[:WARM])
    start = time.perf_counter()
    run(texts)
    seconds = time.perf_counter() - start
    if side == OURS and not bf16:
        expected = models.unfuse_splade_head(model).encode(texts[:WARM], show_progress_bar=False).to_dense()
        difference = float((torch.from_numpy(warm.toarray()) - expected).abs().max())
        if difference > TOLERANCE:
            raise RuntimeError(f"vectors of {OURS} and of {PEER} differ by {difference}")
    return {"documents_per_second": round(len(texts) / seconds, 2)}


def within(
    limit_gb: float, function: Callable[..., dict[str, Any]], *arguments: Any
) -> dict[str, Any] | None:
    """Run a module-level function in a fresh process, and kill it if it holds too much memory.

    Args:
        limit_gb: The most resident memory of the process in GB (10^9 bytes).
        function: What is run.
        *arguments: Its arguments.

    Returns:
        What the function returned, or None if it was killed for memory, here or by the system.

    Raises:
        RuntimeError: If it ended in another way.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, function, arguments))
    process.start()
    sender.close()  # the other end is the child's alone, so its death ends the wait
    while not receiver.poll(0.02):
        if _resident_gb(process.pid) > limit_gb:
            process.kill()
            process.join()
            return None
    try:
        found: dict[str, Any] | None = receiver.recv()
    except EOFError:
        found = None
    process.join()
    if found is None and process.exitcode != -signal.SIGKILL:
        raise RuntimeError(f"{function.__name__} ended with the exit status {process.exitcode}")
    return found


def _send(sender: Any, function: Callable[..., dict[str, Any]], arguments: tuple[Any, ...]) -> None:
    sender.send(function(*arguments))


def _resident_gb(pid: int | None) -> float:
    pages = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE") / 1e9


# One size


def measure_size(name: str, folder: str, facts: dict[str, Any], texts: Any, args: argparse.Namespace) -> None:
    """Measure both sides at one size, and append their rows."""
    rows, documents = texts
    limit, threshold = args.memory_limit, facts.pop("threshold")

    def task(side: str, batch_size: int, steps: int) -> Task:
        used = rows[: batch_size * steps]
        return Task(
            folder,
            side,
            used,
            batch_size,
            args.length,
            steps,
            args.precision,
            threshold if args.dropout is None else 0.0,  # dropout is what makes it needed
            limit,
            args.dropout,
        )

    for side in (OURS, PEER):
        setting: dict[str, Any] = {
            "size": name,
            **facts,
            "side": side,
            "threads": args.threads,
            "rows": args.rows,
            "length": args.length,
            "precision": args.precision,
            "dropout": "kept" if args.dropout is None else args.dropout,
            "memory_limit_gb": limit,
        }
        if args.only == [WHOLE_RUN]:
            job = task(side, args.rows, args.run_steps)
            found = within(limit, whole_run, job, args.data)
            if found is None:
                raise RuntimeError(f"the run of {side} was killed, because it held more than {limit:g} GB")
            append_rows("whole_run", [{**setting, "steps": args.run_steps, **found}])
            continue
        if args.only == [LARGEST]:
            fits, too_large, batch = 0, "", FEWEST_ROWS
            while batch <= args.most_rows and not too_large:
                if within(limit, train, task(side, batch, 2)):
                    fits = batch
                else:
                    too_large = str(batch)
                batch *= 2
            append_rows("largest_batch", [{**setting, "rows": fits, "too_large": too_large}])
            continue
        row: dict[str, Any] = {
            **setting,
            **dict.fromkeys(
                ("seconds_per_step", "cpu_seconds_per_step", "peak_gb", "peak_above_model_gb"), ""
            ),
            "documents_per_second": "",
        }
        over = f"over {limit:g} GB"
        if "train" in args.only:
            row |= within(limit, train, task(side, args.rows, args.steps)) or {
                "seconds_per_step": over,
                "peak_gb": over,
            }
        if "encode" in args.only:
            chosen = documents[: args.documents]
            bf16 = args.precision == "bf16"
            encoding = (folder, side, chosen, args.length, args.encode_batch, bf16)
            row |= within(limit, encode_documents, *encoding) or {"documents_per_second": over}
        append_rows("sizes", [row])


def main() -> None:
    """Build each size, measure it and append its rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, help="folder in BEIR layout with a split train")
    parser.add_argument("--tiny", help="folder of the SPLADE encoder of 4.4 million parameters")
    parser.add_argument("--minilm", help="folder of MiniLM with 6 layers")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--only", nargs="+", choices=(*PARTS, WHOLE_RUN, LARGEST), default=list(PARTS))
    parser.add_argument("--most-rows", type=int, default=256, help="rows of a batch of --only largest")
    parser.add_argument("--run-steps", type=int, default=60, help="steps of --only run")
    parser.add_argument("--rows", type=int, default=32, help="rows of three texts in a batch")
    parser.add_argument("--length", type=int, default=128, help="tokens per text")
    parser.add_argument("--steps", type=int, default=4, help="of which the first is not timed")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--precision", choices=("fp32", "auto", "bf16"), default="fp32")
    parser.add_argument("--dropout", type=float, choices=[0.0], help="of both sides; else the encoder's own")
    parser.add_argument("--memory-limit", type=float, default=20.0, help="GB of a process")
    parser.add_argument("--documents", type=int, default=256, help="documents that are encoded")
    parser.add_argument("--encode-batch", type=int, default=32)
    args = parser.parse_args()
    if {WHOLE_RUN, LARGEST} & set(args.only) and len(args.only) > 1:
        parser.error(f"--only {WHOLE_RUN} and {LARGEST} stand alone; received {' '.join(args.only)}")
    given = {"tiny": args.tiny, "minilm": args.minilm}
    tokenizer = args.tiny or args.minilm
    if tokenizer is None:
        parser.error("--tiny or --minilm is needed, whose tokenizer the other sizes take")
    if args.steps < 2:
        parser.error(f"--steps must be 2 or more, because the first is not timed; received {args.steps}")
    # The processes inherit these, and the libraries read them when they are loaded.
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"), str(args.threads))
    least = most = args.rows * args.steps
    if WHOLE_RUN in args.only:
        most = args.rows * args.run_steps
    elif LARGEST in args.only:
        least = most = 2 * args.most_rows
    texts = read_texts(args.data, most)
    if len(texts[0]) < least:
        parser.error(f"{least} rows are needed; {args.data} has {len(texts[0])}")
    for name in args.sizes:
        with tempfile.TemporaryDirectory() as scratch:
            folder = str(Path(scratch) / name)
            arguments = (SIZES[name], given.get(name), tokenizer, texts[1], args.length, folder)
            facts = within(math.inf, build, *arguments)
            if facts is None:
                raise RuntimeError(f"{name} could not be built: its process was killed")
            measure_size(name, folder, facts, texts, args)


if __name__ == "__main__":
    main()

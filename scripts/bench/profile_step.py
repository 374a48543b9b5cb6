"""Where a training step of lexforge spends its time, by the size of the encoder (`bench_sizes.py`).

    python scripts/bench/profile_step.py --data ../shared/data/scifact --tiny ../shared/models/splade-tiny
    python scripts/bench/profile_step.py --data DIR --minilm DIR --size minilm --threads 1

The second of two steps is profiled. The parts and the most expensive operators are printed, and no row is
written.
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

import bench_sizes as sizes
import torch
from torch.profiler import ProfilerActivity, profile, record_function
from transformers import TrainerCallback

from lexforge import models

STEPS = 2


class StepProfile(TrainerCallback):
    """Profiles the last of some steps, in regions that the modules of an encoder and its loss open."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.profile = profile(activities=[ProfilerActivity.CPU])
        self.open = ExitStack()

    def watch(self, module: torch.nn.Module, name: str) -> None:
        """Open a region of that name around each forward of a module."""
        regions: list[Any] = []

        def enter(*_: Any) -> None:
            regions.append(record_function(name))
            regions[-1].__enter__()

        module.register_forward_pre_hook(enter)
        module.register_forward_hook(lambda *_: regions.pop().__exit__(None, None, None))

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start with the forward of the step; tokens are made before it."""
        if state.global_step == self.step - 1:
            self.open.enter_context(self.profile)
            self.open.enter_context(record_function("step"))

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        """Stop after the optimizer."""
        self.open.close()


def step_shares(events: Iterable[Any]) -> dict[str, float]:
    """Seconds of the parts of one step, from the events of the profiler.

    Backward visits the nodes of the loss first and those of the encoder last, because the engine takes the
    latest node of the forward pass first. So what comes before the first node of the head is the loss.
    """
    seconds: Counter[str] = Counter()
    nodes = []
    for event in events:
        if event.name in ("step", "encoder forward", "head forward", "loss forward"):
            seconds[event.name] += event.cpu_time_total / 1e6
        elif event.name.startswith("Optimizer.step"):
            seconds["optimizer"] += event.cpu_time_total / 1e6
        elif event.name.startswith("autograd::engine::evaluate_function"):
            nodes.append(event)
    nodes.sort(key=lambda event: event.time_range.start)
    reached = False
    for event in nodes:
        of_head = "HeadBackward" in event.name
        reached |= of_head
        part = "head backward" if of_head else "encoder backward" if reached else "loss backward"
        seconds[part] += event.cpu_time_total / 1e6
    # The loss calls the encoder, and the encoder's forward is its transformer's.
    seconds["loss forward"] -= seconds["encoder forward"] + seconds["head forward"]
    step = seconds.pop("step")
    return {**seconds, "other": step - sum(seconds.values()), "step": step}


def profile_step(task: sizes.Task) -> dict[str, Any]:
    """Profile the last step of ours."""
    callback = StepProfile(task.steps)
    with tempfile.TemporaryDirectory() as output_dir:
        model = models.lower_bias(sizes.load(task.folder, sizes.OURS, task.length), task.threshold)
        trainer = sizes.make_trainer(task, model, output_dir, callback)
        modules = list(model.children())
        callback.watch(modules[0], "encoder forward")
        callback.watch(modules[-1], "head forward")
        callback.watch(trainer.loss, "loss forward")
        trainer.train()
    top = callback.profile.key_averages().table(
        sort_by="self_cpu_time_total", row_limit=15, max_name_column_width=60
    )
    return {"seconds": step_shares(callback.profile.events()), "operators": top}


def main() -> None:
    """Build the encoder, train two steps in a process of their own, and print the parts of the second."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, help="folder in BEIR layout with a split train")
    parser.add_argument("--tiny", help="folder of the SPLADE encoder of 4.4 million parameters")
    parser.add_argument("--minilm", help="folder of MiniLM with 6 layers")
    parser.add_argument("--size", choices=sizes.SIZES, default="tiny")
    parser.add_argument("--rows", type=int, default=32, help="rows of three texts in a batch")
    parser.add_argument("--length", type=int, default=128, help="tokens per text")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--precision", choices=("fp32", "auto", "bf16"), default="fp32")
    args = parser.parse_args()
    tokenizer = args.tiny or args.minilm
    if tokenizer is None:
        parser.error("--tiny or --minilm is needed, whose tokenizer the other sizes take")
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"), str(args.threads))
    rows, documents = sizes.read_texts(args.data, args.rows * STEPS)
    given = {"tiny": args.tiny, "minilm": args.minilm}.get(args.size)
    with tempfile.TemporaryDirectory() as scratch:
        folder = f"{scratch}/{args.size}"
        size = sizes.SIZES[args.size]
        facts = sizes.within(math.inf, sizes.build, size, given, tokenizer, documents, args.length, folder)
        if facts is None:
            raise RuntimeError(f"{args.size} could not be built: its process was killed")
        task = sizes.Task(
            folder,
            sizes.OURS,
            rows,
            args.rows,
            args.length,
            STEPS,
            args.precision,
            facts["threshold"],
            math.inf,
            None,
        )
        found = sizes.within(math.inf, profile_step, task)
    if found is None:
        raise RuntimeError(f"the steps of {args.size} were killed: lower --rows")
    seconds = found["seconds"]
    print(found["operators"])
    print(f"{args.size}, {args.rows} rows, {args.threads} threads: one step, {seconds['step']:.2f} s")
    for part, spent in seconds.items():
        print(f"  {part:<18}{spent:8.3f} s  {spent / seconds['step']:6.1%}")


if __name__ == "__main__":
    main()

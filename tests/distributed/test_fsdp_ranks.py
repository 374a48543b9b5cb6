"""Training under FSDP2 is training on one process, and what it saves is the whole model."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import SparseEncoder

SCRIPT = Path(__file__).with_name("fsdp_ranks.py")
CONFIGURATION = SCRIPT.parents[2] / "recipes" / "accelerate" / "fsdp.yaml"
TEXTS = ["list array", "the search of an index", "query document"]


@pytest.fixture(scope="module")
def runs(
    run_script: Callable[..., None], tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """The folder that the script wrote on two shards, launched as a recipe is, and on one process."""
    folders = {name: tmp_path_factory.mktemp(name) for name in ("sharded", "one")}
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(CONFIGURATION)]
    threads = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    finished = subprocess.run(
        [*launch, "--main_process_port", "0", str(SCRIPT), str(tiny_checkpoint), str(folders["sharded"])],
        env={**os.environ, **threads},
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert finished.returncode == 0, finished.stderr[-4000:]
    run_script(SCRIPT, tiny_checkpoint, folders["one"], timeout=800)
    return folders


def results(folder: Path) -> dict[str, Any]:
    return torch.load(folder / "results.pt")


@pytest.mark.slow
@pytest.mark.timeout(1700)
def test_two_shards_train_as_one_process(runs: dict[str, Path]) -> None:
    """Fused head, hard negatives, teacher, curriculum, accumulation, clipping by the norm of all shards and
    evaluation in between (loss and ranking): the same log and the same weights after twenty steps.
    """
    sharded, one = results(runs["sharded"]), results(runs["one"])
    assert sharded["shards"] == len(sharded["weights"]) - 2  # the tied output embedding and its bias
    assert one["shards"] == 0
    # float64: the order of sums and the padding of a batch differ, and AdamW carries the difference on.
    torch.testing.assert_close(sharded["weights"], one["weights"], rtol=1e-7, atol=1e-8)
    assert len(sharded["log"]) == len(one["log"]) == 23  # 20 steps, 2 evaluations, the end
    for line, expected in zip(sharded["log"], one["log"], strict=True):
        assert line.keys() == expected.keys()
        for name, value in line.items():
            # A share is that of each rank's own parts, then averaged: not the same on two ranks.
            if not any(part in name for part in ("per_s", "_ms", "runtime", "share/")):
                assert math.isclose(value, expected[name], rel_tol=1e-5, abs_tol=1.1e-4), name  # four digits


@pytest.mark.slow
@pytest.mark.timeout(1700)
def test_a_wanted_number_of_terms_is_that_of_the_whole_model(runs: dict[str, Path]) -> None:
    """The terms of the gathered model are counted, and the weights of FLOPS follow as on one process."""
    sharded, one = results(runs["sharded"])["wanted"], results(runs["one"])["wanted"]
    assert len(sharded) == 6
    torch.testing.assert_close(torch.tensor(sharded), torch.tensor(one), rtol=1e-3, atol=0)


@pytest.mark.slow
@pytest.mark.timeout(1700)
def test_the_default_preset_trains_in_shards(runs: dict[str, Path]) -> None:
    """What it mines, and the average of the weights that it leaves, are those of one process; a resumed run
    reads the mined rows and goes on with the average.
    """
    sharded, one = results(runs["sharded"]), results(runs["one"])
    assert sharded["lexforge"]["rows"] == one["lexforge"]["rows"]
    assert all(row["negative_1"] != row["positive"] for row in one["lexforge"]["rows"])
    # Trained in float64; the averages are float32, whose last digit may differ.
    torch.testing.assert_close(
        sharded["lexforge"]["weights"], one["lexforge"]["weights"], rtol=2e-7, atol=1e-8
    )
    for found in (sharded, one):
        assert found["lexforge_resumed"]["rows"] == found["lexforge"]["rows"]
        resumed, whole = (found[name]["weights"] for name in ("lexforge_resumed", "lexforge"))
        assert all(torch.equal(resumed[name], whole[name]) for name in whole)


@pytest.mark.slow
@pytest.mark.timeout(1700)
def test_what_is_saved_is_the_whole_model(runs: dict[str, Path]) -> None:
    """Stock sentence-transformers loads the final model and each checkpoint, and they encode as those of one
    process do.
    """
    for saved in ("final", "run/checkpoint-7", "run/checkpoint-14", "run/checkpoint-20"):
        sharded, one = (SparseEncoder(str(runs[name] / saved), device="cpu") for name in ("sharded", "one"))
        assert sharded.state_dict().keys() == one.state_dict().keys()
        torch.testing.assert_close(dict(sharded.state_dict()), dict(one.state_dict()), rtol=1e-7, atol=1e-8)
        embeddings = [model.encode(TEXTS, convert_to_sparse_tensor=False) for model in (sharded, one)]
        torch.testing.assert_close(*embeddings, rtol=1e-6, atol=1e-6)
    weights = results(runs["sharded"])["weights"]
    final = SparseEncoder(str(runs["sharded"] / "final"), device="cpu").state_dict()
    torch.testing.assert_close(dict(final), weights, rtol=0, atol=0, check_dtype=False)


@pytest.mark.slow
@pytest.mark.timeout(1700)
def test_a_resumed_run_of_shards_ends_with_the_same_bytes(runs: dict[str, Path]) -> None:
    """From inside an epoch: weights, the optimizer's state, kept whole, scheduler and sampler."""
    for folder in runs.values():
        found = results(folder)
        assert all(torch.equal(found["resumed"][name], found["weights"][name]) for name in found["weights"])


@pytest.mark.slow
@pytest.mark.timeout(1700)
def test_autocast_of_shards_is_that_of_one_process(runs: dict[str, Path]) -> None:
    """Accelerate's own bf16 for FSDP2 would round the activations, and autocast rounds the products alone."""
    sharded, one = (results(folder)["bf16"] for folder in runs.values())
    # 4e-7 apart where products are rounded alike; activations in bfloat16 are 4e-3 apart
    assert math.isclose(sharded["loss"], one["loss"], rel_tol=1e-5)
    assert math.isclose(sharded["grad_norm"], one["grad_norm"], rel_tol=1e-3)


@pytest.mark.slow
@pytest.mark.timeout(1700)
def test_a_gradient_that_is_not_finite_stops_every_rank(runs: dict[str, Path]) -> None:
    """Its shards lie on all ranks, one norm over them tells, and the names are those without shards."""
    messages = [results(folder)["error"] for folder in runs.values()]
    named = [message.split(" became NaN")[0] for message in messages]
    assert named[0] == named[1]
    assert named[0].startswith("the gradient of 0.model.bert.embeddings.word_embeddings.weight")
    assert all("in the step after 1. The last good checkpoint is /" in message for message in messages)
    assert "on rank 1" in messages[0]

"""Two ranks of B rows train like one process of 2 B rows."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from sentence_transformers import SparseEncoder
from sentence_transformers.sparse_encoder import SparseEncoderTrainer
from sentence_transformers.sparse_encoder.data_collator import SparseEncoderDataCollator
from sentence_transformers.sparse_encoder.modules import SpladePooling, Transformer
from small_runs import exact
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from lexforge.common.ranks import rows_of_all_ranks, sum_over_ranks
from lexforge.common.text_identity import NO_TEXT, text_identity
from lexforge.losses import NeuralSparseLoss, memory
from lexforge.losses.base import IDENTITY_KEY, RELEVANT_KEY, TEACHER_KEY
from lexforge.models import fuse_splade_head
from lexforge.sparsity import trim_documents

ROWS = 6
TEXTS = {
    "anchor": "sort a list|parse the tree|write a file|hash of a key|서울 검색|train loss",
    "positive": "sorted list|tree parser read node|open a file and its path|hash map key|검색 질문|a model",
    "negative_1": "close the file|sum of number|search the index in a tree|graph of node|min|error",
    "negative_2": "query|save a model|yield value of function|단어|mean of array|max",
}
# name -> (similarity, whether the teacher comes as embeddings rather than scores)
SETTINGS = {
    "cosine, teacher embeddings": ("cosine", True),
    "dot, teacher scores": ("dot", False),
    "dot, teacher embeddings, repeated texts": ("dot", True),
    "cosine, teacher scores, mini-batches": ("cosine", False),
    "dot, teacher scores, as memory allows": ("dot", False),
}
# Texts that meet again on the other rank: a positive, a negative, an anchor with another positive.
REPEATS = {
    "anchor": "sort a list|parse the tree|write a file|hash of a key|parse the tree|train loss",
    "positive": "sorted list|tree parser read node|open a file and its path|sorted list|검색 질문|a model",
    "negative_1": "close the file|sum of number|search the index in a tree|graph of node|sum of number|error",
    "negative_2": "query|save a model|yield value of function|단어|sorted list|open a file and its path",
}


def parts_and_gradients(checkpoint: str, setting: str, rows: slice, wrap=lambda model: model):
    """The parts and the parameter gradients of one backward over `rows` of the joint batch, in float64."""
    similarity, with_embeddings = SETTINGS[setting]
    texts_of_batch = REPEATS if "repeated" in setting or "mini" in setting else TEXTS
    transformer = Transformer(checkpoint, transformer_task="fill-mask", max_seq_length=32)
    model = SparseEncoder(modules=[transformer, SpladePooling("max")], device="cpu")
    model.similarity_fn_name = similarity
    exact(model)
    generator = torch.Generator().manual_seed(1)
    loss = NeuralSparseLoss(
        model,
        temperature=0.5,
        triplet_margin_weight=2.5,
        query_flops_weight=0.02,
        activation_threshold=20.0,
        penalty_weights=20 * torch.rand(len(model.tokenizer), generator=generator),
        special_token_ids=range(5),
        gather_across_devices=True,
        margin_mse_weight=0.1,
        mini_batch_size=2 if "mini" in setting else "auto" if "memory" in setting else None,
    )
    # The second rank has no memory left, and a whole batch would do for the first one.
    scarce = dist.is_initialized() and dist.get_rank() == 1
    left = mock.patch.object(memory, "free_memory", return_value=0 if scarce else 10**12)
    loss.regularizer_ramp = 0.5
    teacher = {name: torch.randn(ROWS, 7, generator=generator)[rows] for name in TEXTS}
    scores = torch.randn(ROWS, len(TEXTS) - 1, generator=generator)[rows]

    texts = {name: column.split("|")[rows] for name, column in texts_of_batch.items()}
    examples = [dict(zip(texts, row, strict=True)) for row in zip(*texts.values(), strict=True)]
    batch = SparseEncoderDataCollator(preprocess_fn=model.preprocess)(examples)
    if with_embeddings:
        batch.update({f"{name}_{TEACHER_KEY}": embeddings for name, embeddings in teacher.items()})
    if texts_of_batch is REPEATS:  # as our collator does it; each anchor also has a judged document
        judged = {"sort a list": "yield value of function", "train loss": "open a file and its path"}
        for name, column in texts.items():
            batch[f"{name}_{IDENTITY_KEY}"] = torch.tensor([text_identity(text) for text in column])
        batch[f"anchor_{RELEVANT_KEY}"] = torch.tensor(
            [[text_identity(judged[text]) if text in judged else NO_TEXT] for text in texts["anchor"]]
        )
    features, _ = SparseEncoderTrainer.collect_features(None, batch)

    loss.model = wrap(model)
    with left if "memory" in setting else nullcontext():
        parts = loss(features, None if with_embeddings else scores)
        if "memory" in setting:
            chosen = loss.rows_that_fit(loss.model, features)
            assert chosen == (1 if dist.is_initialized() else None), chosen
    sum(parts.values()).backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return {name: part.detach() for name, part in parts.items()}, gradients


def two_operations() -> dict[str, torch.Tensor]:
    """Both operations on rank-dependent rows, with a rank-dependent loss on the result."""
    rank = dist.get_rank()
    rows = torch.tensor([[1.0 + rank], [10.0 * (1 + rank)]], requires_grad=True)
    total, gathered = sum_over_ranks(rows), rows_of_all_ranks(rows)
    weights = torch.tensor([[1.0], [2.0], [3.0], [4.0]]) * (1 + rank)
    (summed_gradient,) = torch.autograd.grad((total * (1 + rank)).sum(), rows)
    (gathered_gradient,) = torch.autograd.grad((gathered * weights).sum(), rows)
    return {
        "sum": total.detach(),
        "rows": gathered.detach(),
        "sum gradient": summed_gradient,
        "rows gradient": gathered_gradient,
    }


def trimmed(checkpoint: str) -> dict[str, torch.Tensor]:
    """The bias of a model that is trimmed on all ranks, though each of them has other documents."""
    transformer = Transformer(checkpoint, transformer_task="fill-mask", max_seq_length=32)
    model = SparseEncoder(modules=[transformer, SpladePooling("max")], device="cpu")
    documents = TEXTS["negative_1" if dist.get_rank() else "positive"].split("|")
    reached = trim_documents(model, documents, 12, batch_size=4)
    bias = transformer.model.get_output_embeddings().bias.detach()
    return {"bias": bias, "reached": torch.tensor(reached)}


def joint_parts_and_gradients(checkpoint: str, wrap: Callable[[nn.Module], nn.Module]) -> dict[str, Any]:
    """The same on the share of a rank; parts are means over the ranks."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    share = ROWS // ranks
    results = {}
    for setting in SETTINGS:
        own = slice(rank * share, (rank + 1) * share)
        parts, gradients = parts_and_gradients(checkpoint, setting, own, wrap)
        for part in parts.values():
            dist.all_reduce(part)
            part /= ranks
        whole = {
            name: gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
            for name, gradient in gradients.items()
        }
        results[setting] = parts, whole
    return results


def on_each_rank(checkpoint: str, folder: Path) -> dict[str, Any]:
    """Under DistributedDataParallel; both operations and a trimmed bias."""
    # sentence-transformers' arguments say so: several forward passes come before a backward pass
    wrap = partial(nn.parallel.DistributedDataParallel, broadcast_buffers=False)
    results = joint_parts_and_gradients(checkpoint, wrap)
    return results | {"operations": two_operations(), "trimmed": trimmed(checkpoint)}


def on_each_shard(checkpoint: str, folder: Path) -> dict[str, Any]:
    """Under FSDP2, through the fused head."""
    return joint_parts_and_gradients(checkpoint, shard)


def shard(model: nn.Module) -> nn.Module:
    """Each layer a group of its own; the output embedding stays with the root."""
    fuse_splade_head(model)  # type: ignore[arg-type]
    for module in list(model.modules()):
        if type(module).__name__ == "BertLayer":
            fully_shard(module)
    return fully_shard(model)


@pytest.mark.parametrize(
    "function",
    ["on_each_rank", pytest.param("on_each_shard", marks=[pytest.mark.slow, pytest.mark.timeout(900)])],
)
@pytest.mark.parametrize("setting", SETTINGS)
def test_two_ranks_equal_one_process_with_the_joint_batch(
    setting: str, function: str, on_ranks: Callable[..., list[Any]], tiny_checkpoint: Path
) -> None:
    """Every part (hard negatives, teacher, IDF FLOPS, left-out candidates, ...) and gradient.

    The head reads the output embedding outside its forward, which FSDP1 forbids and FSDP2 allows as long as
    that layer belongs to the root's group; `ShardedTraining` sees to that.
    """
    parts, gradients = parts_and_gradients(str(tiny_checkpoint), setting, slice(0, ROWS))
    joint_parts, joint_gradients = on_ranks(function)[0][setting]
    assert len(parts) == 9
    assert all(part.item() != 0 for part in parts.values())
    assert all(gradient.any() for gradient in gradients.values())
    # float64 throughout; only the order of sums and the padding of a batch differ
    torch.testing.assert_close(joint_parts, parts, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(joint_gradients, gradients, rtol=1e-8, atol=1e-10)


def test_the_two_operations_by_hand(on_ranks: Callable[..., list[Any]]) -> None:
    """Rank r holds rows (1 + r), 10 (1 + r) and weighs its loss by 1 + r: gradients add over both losses."""
    for rank, of_rank in enumerate(on_ranks("on_each_rank")):
        results = of_rank["operations"]
        assert results["sum"].tolist() == [[3.0], [30.0]]
        assert results["sum gradient"].tolist() == [[3.0], [3.0]]
        assert results["rows"].tolist() == [[1.0], [10.0], [2.0], [20.0]]
        expected = [[3.0], [6.0]] if rank == 0 else [[9.0], [12.0]]
        assert results["rows gradient"].tolist() == expected


def test_the_trimmed_bias_is_that_of_the_first_rank(on_ranks: Callable[..., list[Any]]) -> None:
    """The model must stay equal on all ranks."""
    first, second = (results["trimmed"] for results in on_ranks("on_each_rank"))
    torch.testing.assert_close(first["bias"], second["bias"], rtol=0, atol=0)
    assert first["reached"].item() == second["reached"].item() == 12.0

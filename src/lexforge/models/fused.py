"""Fuse the SPLADE head of a `SparseEncoder`: same weights, same saved format, no logits `[B, L, V]`.

Two modules get another `forward` on the instance. Their classes, parameters and names stay as they are, so
`state_dict` keys, tied weights, `modules.json`, pickling and `copy.deepcopy` do not change:

- the output embedding (the last linear layer of the masked language model) returns its input unchanged, so
  that the model's "logits" are the `[B, L, D]` states from which logits would have been computed;
- `SpladePooling` turns those states into activations with `lexforge.kernels.splade_head` and the weight and
  bias of that output embedding.

Where the model is traced or exported (`torch.jit.trace`, `torch.export`, `torch.onnx.export`), both run the
forward of their classes instead, so that the graph holds the plain head in ordinary operators.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import torch
from sentence_transformers import SparseEncoder
from sentence_transformers.base.modules import Dense, Transformer
from sentence_transformers.sparse_encoder.modules import SpladePooling
from torch import Tensor, nn

from lexforge.common.evaluation_mode import evaluation_mode
from lexforge.kernels import splade_head
from lexforge.models.structure import module_sequences, plain_decoder, token_decoder
from lexforge.models.token_weights import TokenWeights

logger = logging.getLogger(__name__)


def fuse_splade_head(model: SparseEncoder) -> SparseEncoder:
    """Replace, in place, the logits and the SPLADE pooling of a model by `lexforge.kernels.splade_head`.

    Every `Transformer` (task "fill-mask") followed by a `SpladePooling` is fused, also inside the routes of a
    `Router`; other modules stay. Activations are float32 (float64 for a float64 model) whatever the model's
    dtype. `SpladePooling.chunk_size` has no effect on a fused model. A model that is fused already is
    returned as it is. Fused models train under DistributedDataParallel, and under FSDP2 (`fully_shard`) as
    long as the output embedding belongs to the root's group. FSDP1, DeepSpeed ZeRO-3 and `nn.DataParallel`
    hide the parameters of a layer outside its own forward, so they need the plain head. `torch.compile` takes
    a fused model; where it is traced or exported, the graph holds the plain head, and one line of the log
    says so. The head of BGE-M3 (`TokenWeights`) makes no logits, so a model with it stays as it is.

    Args:
        model: A SPLADE model on a masked language model whose logits are the output of its output embedding.
            That holds for BERT, DistilBERT, RoBERTa, XLM-RoBERTa, ELECTRA and ModernBERT; every model is
            checked with one small forward.

    Returns:
        `model`.

    Raises:
        ValueError: If no such pair of modules is found, if the pooling's strategy is "sum", or if the logits
            are anything else than the output of the output embedding.
    """
    pairs = list(_pairs(model))
    if not pairs and any(isinstance(module, TokenWeights) for module in model.modules()):
        return model
    if not pairs:
        raise ValueError(
            "fuse_splade_head needs a Transformer (transformer_task='fill-mask') followed by SpladePooling, "
            f"received the modules {[type(module).__name__ for module in model.children()]}"
        )
    decoders = [_checked_decoder(transformer, pooling) for transformer, pooling in pairs]
    for (transformer, pooling), decoder in zip(pairs, decoders, strict=True):
        vars(decoder)["forward"] = _HandThrough(decoder)
        vars(pooling)["forward"] = _FusedPooling(pooling, transformer)
    return model


def unfuse_splade_head(model: SparseEncoder) -> SparseEncoder:
    """Undo `fuse_splade_head` in place; a plain model is returned as it is.

    Args:
        model: A fused or plain model.

    Returns:
        `model`, whose modules run their own classes' `forward` again.
    """
    for module in model.modules():
        if isinstance(vars(module).get("forward"), (_HandThrough, _FusedPooling)):
            del vars(module)["forward"]
    return model


def is_fused(model: SparseEncoder) -> bool:
    """Return whether `fuse_splade_head` has replaced a head of the model."""
    forwards = (vars(module).get("forward") for module in model.modules())
    return any(isinstance(forward, _HandThrough | _FusedPooling) for forward in forwards)


class _HandThrough:
    """The forward of an output embedding whose product the pooling computes later, tile by tile."""

    def __init__(self, decoder: nn.Linear) -> None:
        self.decoder = decoder

    def __call__(self, hidden: Tensor) -> Tensor:
        return type(self.decoder).forward(self.decoder, hidden) if _is_traced() else hidden


class _FusedPooling:
    """The forward of a `SpladePooling` that receives hidden states instead of logits."""

    def __init__(self, pooling: SpladePooling, transformer: Transformer | Dense) -> None:
        self.pooling = pooling
        self.transformer = transformer
        self.has_logged = False

    def __call__(self, features: dict[str, Any]) -> dict[str, Any]:
        if _is_traced():
            if not self.has_logged:
                logger.warning("the SPLADE head is traced in its plain form, which makes logits [B, L, V]")
                self.has_logged = True
            return type(self.pooling).forward(self.pooling, features)
        # Looked up at each call, because a resized or wrapped model has another output embedding.
        decoder = token_decoder(self.transformer)
        if not isinstance(vars(decoder).get("forward"), _HandThrough):
            raise RuntimeError(
                "the output embedding was replaced after fuse_splade_head (new tokens or an adapter): "
                "call fuse_splade_head on the model again"
            )
        hidden, attention_mask = padded(features, "token_embeddings")
        double_log1p = self.pooling.activation_function == "log1p_relu"
        activations = splade_head(  # [B, V]
            hidden, decoder.weight, decoder.bias, attention_mask, double_log1p=double_log1p
        )
        # SpladePooling learns its width at its first forward, and saves it.
        if self.pooling.embedding_dimension is None:
            self.pooling.embedding_dimension = activations.shape[1]
        features["sentence_embedding"] = activations
        return features


def _is_traced() -> bool:
    """Whether a graph of ordinary operators is being recorded that runs without this package."""
    # Inside a compiler torch 2.11 takes every graph for an exported one; torch.export uses none by default.
    exporting = torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling()
    return torch.jit.is_tracing() or exporting or torch.onnx.is_in_onnx_export()


def padded(features: dict[str, Any], name: str) -> tuple[Tensor, Tensor]:
    """Return a feature of the tokens of B texts with padding, which flash attention leaves out.

    Args:
        features: `name` and `attention_mask` `[B, L]`; or without padding `cu_seq_lens_q` `[B + 1]`, where
            each text begins and ends, and `max_length_q`, the length of the longest.
        name: Of the feature: `[B, L, ...]`, or without padding `[1, T, ...]`.

    Returns:
        The feature `[B, L, ...]`, and the mask `[B, L]`, 0 or False at padding.
    """
    values = features[name]
    if "cu_seq_lens_q" not in features:
        return values, features["attention_mask"]
    ends = features["cu_seq_lens_q"].to(values.device)  # [B + 1], of each text behind a 0
    # The longest text comes as a number, so that nothing waits for the device.
    positions = torch.arange(features["max_length_q"], device=values.device)  # [L]
    mask = positions < ends.diff().unsqueeze(1)  # [B, L]
    places = torch.where(mask, ends[:-1].unsqueeze(1) + positions, 0)  # [B, L], in the flat states
    return values.squeeze(0)[places], mask


def _pairs(model: SparseEncoder) -> Iterator[tuple[Transformer | Dense, SpladePooling]]:
    """Yield each module that makes logits with the `SpladePooling` behind it, in the model and its routes.

    It is a `Transformer`, or the `Dense` behind one without a head. When it is fused it returns no logits, so
    whatever follows it in any route must be that pooling.
    """
    pooled_by: dict[nn.Module, nn.Module | None] = {}
    for modules in module_sequences(model):
        for module, follower in zip(modules, [*modules[1:], None], strict=True):
            if not isinstance(module, Transformer | Dense):
                continue
            if pooled_by.setdefault(module, follower) is not follower:
                raise ValueError(
                    f"a {type(module).__name__} shared by several routes needs one SpladePooling shared by "
                    f"them as well, received {type(pooled_by[module]).__name__} and "
                    f"{type(follower).__name__} behind it"
                )
            if isinstance(follower, SpladePooling):
                yield module, follower


def _checked_decoder(transformer: Transformer | Dense, pooling: SpladePooling) -> nn.Linear:
    """Return the linear layer that makes the logits, or raise where it cannot be fused."""
    if pooling.pooling_strategy != "max":
        raise ValueError(
            f"pooling_strategy must be 'max' to fuse, because a sum needs every logit; received "
            f"{pooling.pooling_strategy!r}. Keep the model plain, or train it with SpladePooling('max')"
        )
    if isinstance(transformer, Dense):
        return plain_decoder(transformer)
    architecture = type(transformer.model).__name__
    decoder = getattr(transformer.model, "get_output_embeddings", lambda: None)()
    if isinstance(decoder, nn.Linear) and isinstance(vars(decoder).get("forward"), _HandThrough):
        return decoder
    if type(decoder) is not nn.Linear or "forward" in vars(decoder):
        received = f"{type(decoder).__module__}.{type(decoder).__name__}"  # that of peft is a Linear, too
        raise ValueError(
            f"{architecture} needs a plain nn.Linear as output embedding; received {received}. "
            "Merge adapters and remove device maps before fusing, or keep the model plain"
        )
    if not _logits_are_output_of(transformer, decoder):
        raise ValueError(
            f"the logits of {architecture} are not the output of its output embedding (they are scaled, "
            "shifted or computed elsewhere): keep the model plain"
        )
    return decoder


def _logits_are_output_of(transformer: Transformer, decoder: nn.Linear) -> bool:
    """Return whether the tensor that the pooling would receive is the very tensor that `decoder` returned."""
    outputs: list[Tensor] = []
    hook = decoder.register_forward_hook(lambda module, args, output: outputs.append(output))
    ids = torch.zeros(1, 2, dtype=torch.long, device=decoder.weight.device)
    try:
        with evaluation_mode(transformer), torch.no_grad():
            features = transformer({"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    finally:
        hook.remove()
    return len(outputs) == 1 and features["token_embeddings"] is outputs[0]

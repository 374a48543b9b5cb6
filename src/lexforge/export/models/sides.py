"""What an encoder does with a text, one side at a time: the parts that an export writes down."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from sentence_transformers import SparseEncoder
from sentence_transformers.base.modules import Dense, Normalize, Router, Transformer
from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding, SpladePooling
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from lexforge.common.types import TEXT_KINDS, TextKind
from lexforge.models import encode_kind, saved_prompt
from lexforge.models.lengths import UNLIMITED
from lexforge.models.structure import plain_decoder


@dataclass(frozen=True, eq=False)
class EncoderSide:
    """One way in which an encoder turns texts into vectors.

    Args:
        folder: Where its files stand below the export: "" if queries and documents are encoded alike, else
            "query" or "document".
        kinds: What it encodes: queries, documents or both.
        tokenizer: Turns its texts into token ids.
        max_seq_length: Tokens after which a text is cut, special tokens included.
        max_active_dims: How many of the largest weights a vector keeps; None keeps all.
        prompts: For each kind, the words that stand before each text; "" for none.
        normalized: Whether vectors are scaled to unit length (before the smallest weights are dropped).
        vocabulary_size: V, the width of the vectors, which may exceed the entries of the tokenizer.
    """

    folder: str
    kinds: tuple[TextKind, ...]
    tokenizer: PreTrainedTokenizerFast
    max_seq_length: int
    max_active_dims: int | None
    prompts: dict[TextKind, str]
    normalized: bool
    vocabulary_size: int

    def terms(self) -> list[str]:
        """Return the entry of the tokenizer for each id up to the largest; a gap has its id in brackets."""
        names = {index: term for term, index in self.tokenizer.get_vocab().items()}
        return [names.get(index, f"[{index}]") for index in range(max(names) + 1)]


@dataclass(frozen=True, eq=False)
class EncodedSide(EncoderSide):
    """A side that runs a transformer whose states are decoded to terms.

    Args:
        model: A masked language model, which returns logits `[B, L, V]`, or a transformer that returns states
            `[B, L, D]`.
        decoder: What turns states into logits, in an encoder that was made of a dense one, of a bare encoder
            or of a decoder language model; None where the model does it.
        pooling: "max" or "sum" over the tokens.
        double_log1p: Whether the activation is log1p(log1p(relu(x))) instead of log1p(relu(x)).
        has_token_types: Whether the tokenizer makes token_type_ids and the model reads
            them, which DistilBERT does not.
    """

    model: nn.Module
    decoder: nn.Linear | None
    pooling: str
    double_log1p: bool
    has_token_types: bool


@dataclass(frozen=True, eq=False)
class LookupSide(EncoderSide):
    """A side that looks the weight of each token up in a table.

    Args:
        weights: `[V] float32`.
    """

    weights: Tensor


def read_sides(model: SparseEncoder) -> list[EncoderSide]:
    """Take an encoder apart.

    Args:
        model: A SPLADE encoder with the plain head: symmetric, or asymmetric with a `Router`.

    Returns:
        One side, or that of the queries and that of the documents.

    Raises:
        ValueError: If the encoder has modules that no export can write, or no fast tokenizer.
    """
    modules = list(model.children())
    normalized = isinstance(modules[-1], Normalize)
    modules = modules[:-1] if normalized else modules
    if len(modules) != 1 or not isinstance(modules[0], Router):
        return [_read_side(model, modules, "", TEXT_KINDS, normalized)]
    routes = modules[0].sub_modules
    if set(routes) != set(TEXT_KINDS):
        raise ValueError(
            "an encoder with a Router is exported if its routes are 'query' and 'document'; received "
            f"{sorted(routes)}"
        )
    return [
        _read_side(model, list(cast(nn.Sequential, routes[kind])), kind, (kind,), normalized)
        for kind in TEXT_KINDS
    ]


def _read_side(
    model: SparseEncoder,
    modules: Sequence[nn.Module],
    folder: str,
    kinds: tuple[TextKind, ...],
    normalized: bool,
) -> EncoderSide:
    """Return the side that a sequence of modules makes, or raise where no export can write it."""
    expected = ([Transformer, SpladePooling], [Transformer, Dense, SpladePooling], [SparseStaticEmbedding])
    # sentence-transformers before 5.4 saved an MLMTransformer, which computes the same.
    types = [Transformer if isinstance(module, Transformer) else type(module) for module in modules]
    if types not in expected:
        raise ValueError(
            "an export writes a Transformer followed by SpladePooling, also with a Dense between them, or a "
            f"SparseStaticEmbedding; received the modules {[type(module).__name__ for module in modules]}"
        )
    first: Any = modules[0]
    tokenizer = first.tokenizer
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ValueError(
            "an export needs a tokenizer that is saved as tokenizer.json (a fast one); received "
            f"{type(tokenizer).__name__}"
        )
    own = first.max_seq_length if isinstance(first, Transformer) else None
    limit = min(own or int(tokenizer.model_max_length), UNLIMITED)  # a runtime wants a number
    limits = {kind: getattr(first, f"{kind}_length", None) or limit for kind in kinds}
    if len(set(limits.values())) > 1:
        raise ValueError(
            f"an export cuts queries and documents after the same number of tokens; received {limits}"
        )
    shared: dict[str, Any] = {
        "folder": folder,
        "kinds": kinds,
        "tokenizer": tokenizer,
        "max_seq_length": limits[kinds[0]],
        "max_active_dims": model.max_active_dims,
        "prompts": {kind: saved_prompt(model, kind) for kind in kinds},
        "normalized": normalized,
    }
    if isinstance(first, SparseStaticEmbedding):
        return LookupSide(
            **shared, vocabulary_size=len(first.weight), weights=first.weight.detach().float().cpu()
        )
    pooling = cast(SpladePooling, modules[-1])
    backbone = first.model.float().cpu().eval()
    decoder = plain_decoder(modules[1]).float().cpu().eval() if isinstance(modules[1], Dense) else None
    output = backbone.get_output_embeddings() if decoder is None else decoder
    inputs = set(tokenizer.model_input_names) & set(inspect.signature(backbone.forward).parameters)
    return EncodedSide(
        **shared,
        vocabulary_size=len(output.weight),
        model=backbone,
        decoder=decoder,
        pooling=pooling.pooling_strategy,
        double_log1p=pooling.activation_function == "log1p_relu",
        has_token_types="token_type_ids" in inputs,
    )


def reference_vectors(model: SparseEncoder, texts: Sequence[str], kind: TextKind) -> Tensor:
    """Encode texts with the model itself: what each export is compared with.

    Args:
        model: The encoder.
        texts: N texts.
        kind: What they are.

    Returns:
        `[N, V] float32` on the CPU.
    """
    rows = encode_kind(
        model, texts, kind, convert_to_tensor=True, convert_to_sparse_tensor=False, show_progress_bar=False
    )
    return rows.float().cpu()


def write_tokenizer(side: EncoderSide, folder: Path) -> Tokenizer:
    """Save the tokenizer so that any runtime cuts and pads texts as the encoder does.

    `tokenizer.json` carries the length after which texts are cut, and `tokenizer_config.json` says it too.
    That of a table adds no special tokens, because its texts have none.

    Args:
        side: Whose tokenizer it is.
        folder: Where the files go; it is made if it is missing.

    Returns:
        The tokenizer as a runtime reads it from `tokenizer.json`.
    """
    folder.mkdir(exist_ok=True)
    tokenizer = copy.deepcopy(side.tokenizer)
    tokenizer.model_max_length = side.max_seq_length
    tokenizer.save_pretrained(folder)
    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    if isinstance(side, LookupSide):
        backend.post_processor = TemplateProcessing(single="$A", pair="$A $B")
    backend.enable_truncation(side.max_seq_length)
    backend.enable_padding(pad_id=tokenizer.pad_token_id, pad_token=tokenizer.pad_token)
    backend.save(str(folder / "tokenizer.json"))
    return backend


def token_arrays(tokenizer: Tokenizer, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Tokenize a batch as a runtime does that has only `tokenizer.json`.

    Args:
        tokenizer: As `write_tokenizer` returns it.
        texts: B texts, their prompts included.

    Returns:
        input_ids and attention_mask, each `[B, L] int64`.
    """
    encodings = tokenizer.encode_batch(list(texts))
    ids = torch.tensor([encoding.ids for encoding in encodings], dtype=torch.long)
    mask = torch.tensor([encoding.attention_mask for encoding in encodings], dtype=torch.long)
    return ids, mask

"""The target of Elasticsearch: TorchScript, vocabulary and configuration, as eland uploads them.

eland's own text_expansion task takes the logits of the masked language model, of which Elasticsearch reads
position 0 only. Here the pooled vector stands at that position.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from lexforge.export.models.check import RunTexts, Written
from lexforge.export.models.files import EXAMPLE_TEXTS, load_torchscript, portable_side, torchscript_bytes
from lexforge.export.models.graphs import TermWeights
from lexforge.export.models.sides import EncoderSide, LookupSide, token_arrays, write_tokenizer

MODEL_FILE = "traced_pytorch_model.pt"


class AtFirstPosition(nn.Module):
    """A graph that returns the vector of a text where Elasticsearch reads the first token's, `[B, 1, V]`."""

    def __init__(self, side: EncoderSide) -> None:
        super().__init__()
        self.weights = TermWeights(side)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        """Return `[B, 1, V]`; Elasticsearch sends the positions of BERT's tokens, which the model counts."""
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        return self.weights(input_ids, attention_mask, types).unsqueeze(1)


def write_elasticsearch(side: EncoderSide, folder: Path, name: str) -> Written:
    """Write `traced_pytorch_model.pt`, `config.json` and `vocabulary.json`.

    Args:
        side: A side of the encoder; a table becomes a graph that looks up.
        folder: Absent, or an empty folder.
        name: Name of the model, for its description.

    Returns:
        What was written.

    Raises:
        ValueError: If Elasticsearch has no tokenizer that cuts texts as the encoder's does.
    """
    tokenizer = write_tokenizer(side, folder)
    family, options = _tokenization(json.loads(tokenizer.to_str()))
    ids, mask = token_arrays(tokenizer, EXAMPLE_TEXTS)
    graph = AtFirstPosition(portable_side(side)).eval()
    content = torchscript_bytes(graph, _arguments(family, ids, mask), freeze=True)
    (folder / MODEL_FILE).write_bytes(content)
    vocabulary = _vocabulary(side, json.loads(tokenizer.to_str())["model"])
    (folder / "vocabulary.json").write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8")
    options |= {
        "max_sequence_length": side.max_seq_length,
        "with_special_tokens": not isinstance(side, LookupSide),  # a table's texts have none
    }
    configuration: dict[str, Any] = {
        "description": f"{name}, for {' and '.join(side.kinds)} texts, exported by lexforge",
        "model_type": "pytorch",
        "inference_config": {"text_expansion": {"tokenization": {family: options}}},
        "input": {"field_names": ["text_field"]},
    }
    prompt_keys = {"document": "ingest", "query": "search"}
    prefixes = {prompt_keys[each]: prompt for each, prompt in side.prompts.items() if prompt}
    if prefixes:
        configuration["prefix_strings"] = prefixes
    (folder / "config.json").write_text(json.dumps(configuration, indent=1) + "\n", encoding="utf-8")
    return Written(side, folder, partial(_load, folder, family), (), "libtorch")


def _tokenization(tokenizer: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the family and the options of Elasticsearch's tokenizer for a `tokenizer.json`, or refuse it."""
    model, normalizer = tokenizer["model"]["type"], tokenizer.get("normalizer") or {}
    cutting = tokenizer.get("pre_tokenizer") or {}
    specials = {token["content"] for token in tokenizer["added_tokens"]}
    if model == "WordPiece" and normalizer.get("type") == "BertNormalizer":
        lower = normalizer["lowercase"]
        strips = lower if normalizer["strip_accents"] is None else normalizer["strip_accents"]
        if strips != lower:
            raise ValueError(
                "Elasticsearch strips accents exactly if it lower-cases, and it decomposes Hangul then; the "
                f"encoder's tokenizer has lowercase={lower} and strip_accents={strips}"
            )
        if not normalizer["handle_chinese_chars"]:
            raise ValueError(
                "Elasticsearch cuts Chinese text into characters; the encoder's tokenizer does not"
            )
        return "bert", {"do_lower_case": lower}
    if model == "BPE" and cutting.get("type") == "ByteLevel" and {"<s>", "</s>"} <= specials:
        if normalizer:
            raise ValueError(
                "Elasticsearch cuts texts as RoBERTa does, without a normalizer; the encoder's tokenizer has "
                f"one of the type {normalizer['type']}"
            )
        return "roberta", {"add_prefix_space": cutting["add_prefix_space"]}
    if model == "Unigram" and {"<s>", "</s>"} <= specials:
        return "xlm_roberta", {}
    raise ValueError(
        "Elasticsearch cuts texts as BERT, RoBERTa and XLM-RoBERTa do; the encoder's tokenizer is of the "
        f"type {model} with {cutting.get('type')} and the special tokens {sorted(specials)[:5]}"
    )


def _vocabulary(side: EncoderSide, model: dict[str, Any]) -> dict[str, list[Any]]:
    """Return what Elasticsearch stores: the terms by id, and the merges or scores of the tokenizer."""
    terms = side.terms()
    # Outputs beyond the tokenizer need a name as well, or a text that activates one fails.
    terms += [f"[output-{index}]" for index in range(len(terms), side.vocabulary_size)]
    content: dict[str, list[Any]] = {"vocabulary": terms}
    if model["type"] == "BPE":
        content["merges"] = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    if model["type"] == "Unigram":
        scores = [score for _, score in model["vocab"]]
        content["scores"] = scores + [0.0] * (len(terms) - len(scores))
    return content


def _arguments(family: str, ids: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
    """Return what Elasticsearch sends for a batch: four tensors after BERT's tokenizer, else two."""
    if family != "bert":
        return ids, mask
    positions = torch.arange(ids.shape[1]).expand_as(ids)
    return ids, mask, torch.zeros_like(ids), positions


def _load(folder: Path, family: str) -> RunTexts:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    model = load_torchscript((folder / MODEL_FILE).read_bytes())

    def run(texts: Sequence[str]) -> Tensor:
        with torch.no_grad():
            vectors = model(*_arguments(family, *token_arrays(tokenizer, texts)))  # [B, 1, V]
        return vectors[:, 0]

    return run

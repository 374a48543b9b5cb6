"""Dropout in every family of encoders, how many positions one has, and what its columns are called."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from sentence_transformers import SentenceTransformer, SparseEncoder
from sentence_transformers.sparse_encoder.modules import SparseAutoEncoder

from lexforge.corpus import encode, named_terms
from lexforge.models import name_columns
from lexforge.models.structure import positions_of, set_dropout

SMALL = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "pad_token_id": 0,
}
FAMILIES = ["Bert", "DistilBert", "Roberta", "XLMRoberta", "Electra", "MPNet", "ModernBert", "Qwen3", "Llama"]


def encoder(family: str) -> Any:
    """A random model without a head, in training."""
    config = getattr(transformers, f"{family}Config")
    own = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24, "vocab_size": 50}
    return getattr(transformers, f"{family}Model")(config(**own if family == "DistilBert" else SMALL)).train()


@pytest.mark.parametrize("family", FAMILIES)
def test_two_passes_agree_without_dropout_alone(family: str) -> None:
    """What a family has by default differs; after the call all of it is 0, or all of it is there."""
    model = encoder(family)
    ids = torch.arange(1, 21).reshape(2, 10)
    states = []
    for share in (0.0, 0.0, 0.5, 0.5):
        set_dropout(model, share)
        states.append(model(input_ids=ids).last_hidden_state)
    assert torch.equal(states[0], states[1])
    assert not torch.allclose(states[2], states[3])


def test_a_model_without_a_limit_has_no_number_of_positions() -> None:
    """XLNet's configuration says -1, and any length would be refused."""
    with torch.device("meta"):
        model = transformers.XLNetModel(transformers.XLNetConfig(d_model=16, n_layer=1, n_head=2, d_inner=16))
    assert positions_of(model) is None


def test_the_columns_of_a_csr_model_stand_for_no_tokens(tiny_dense: SentenceTransformer) -> None:
    """Named by the tokenizer they would explain each hit by words that neither text has."""
    width = tiny_dense.get_embedding_dimension()
    assert width is not None
    head = SparseAutoEncoder(input_dim=width, hidden_dim=2 * width, k=4)
    model = SparseEncoder(modules=[*tiny_dense, head], device="cpu")
    assert name_columns(model, [0, 7]) == ["[0]", "[7]"]
    (terms,) = named_terms(model, encode(model, ["sort a list"], "document"))
    assert [term[0] + term[-1] for term, _ in terms] == ["[]"] * 4
    weights = [weight for _, weight in terms]
    assert weights == sorted(weights, reverse=True)


def test_a_column_beyond_the_tokenizer_is_named_by_its_number(tiny_splade: SparseEncoder) -> None:
    """Decoders are padded to round numbers."""
    known = len(tiny_splade.tokenizer)
    assert name_columns(tiny_splade, [5, known]) == [
        *tiny_splade.tokenizer.convert_ids_to_tokens([5]),
        f"[{known}]",
    ]

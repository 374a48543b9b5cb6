"""Build and load encoders, thin over the modules of sentence-transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lexforge.common.lazy import load_when_used

if TYPE_CHECKING:
    from lexforge.models.decoder_bias import (
        decoder_biases,
        lower_bias,
        restrict_output_vocabulary,
        shift_bias_by_idf,
    )
    from lexforge.models.dense import build_dense
    from lexforge.models.fused import fuse_splade_head, unfuse_splade_head
    from lexforge.models.head_scale import has_language_model_head, head_is_trained, scale_head
    from lexforge.models.inference_free import build_inference_free
    from lexforge.models.lengths import default_tokens, own_width
    from lexforge.models.lexical_init import build_lexical_backbone, resolve_backbone
    from lexforge.models.load import check_encoder, load_encoder, normalize_vectors
    from lexforge.models.momentum import MomentumEncoder, is_training
    from lexforge.models.names import check_model, checked_name, model_type
    from lexforge.models.prompts import column_prompts, encode_kind, saved_prompt
    from lexforge.models.splade import build_splade
    from lexforge.models.structure import (
        embedding_dimension,
        has_router,
        name_columns,
        special_token_ids,
        vocabulary_size,
    )
    from lexforge.models.token_weights import TokenWeights, dense_encoder, save_flag_embedding
    from lexforge.models.training_forward import fuse_encoder

__all__ = [
    "MomentumEncoder",
    "TokenWeights",
    "build_dense",
    "build_inference_free",
    "build_lexical_backbone",
    "build_splade",
    "check_encoder",
    "check_model",
    "checked_name",
    "column_prompts",
    "decoder_biases",
    "default_tokens",
    "dense_encoder",
    "embedding_dimension",
    "encode_kind",
    "fuse_encoder",
    "fuse_splade_head",
    "has_language_model_head",
    "has_router",
    "head_is_trained",
    "is_training",
    "load_encoder",
    "lower_bias",
    "model_type",
    "name_columns",
    "normalize_vectors",
    "own_width",
    "resolve_backbone",
    "restrict_output_vocabulary",
    "save_flag_embedding",
    "saved_prompt",
    "scale_head",
    "shift_bias_by_idf",
    "special_token_ids",
    "unfuse_splade_head",
    "vocabulary_size",
]

__getattr__, __dir__ = load_when_used(__name__)

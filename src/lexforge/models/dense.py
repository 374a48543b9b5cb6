"""Dense encoders in sentence-transformers' modules and saved format."""

from __future__ import annotations

from pathlib import Path

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

from lexforge.common.similarity import Similarity, check_similarity
from lexforge.models.names import check_saved_class, checked_name
from lexforge.models.structure import set_max_seq_length


def build_dense(
    name_or_path: str | Path,
    *,
    max_seq_length: int | None = None,
    similarity: Similarity | None = None,
    device: str | None = None,
) -> SentenceTransformer:
    """Build or load a dense encoder: a saved `SentenceTransformer`, or a transformer with mean pooling.

    Args:
        name_or_path: A folder or a hub name: a saved `SentenceTransformer`, or a checkpoint that `AutoModel`
            and `AutoTokenizer` load, such as a backbone of `build_lexical_backbone`.
        max_seq_length: Texts are cut after this many tokens, special tokens included; None keeps what the
            model says, limited to what it has positions for.
        similarity: How texts are compared; saved with the model as `similarity_fn_name`. None keeps that of a
            saved model, and gives a new one "cosine".
        device: Where the model is put; None leaves the choice to sentence-transformers.

    Returns:
        The encoder.

    Raises:
        FileNotFoundError: If there is no such folder, and no such model on the hub.
        ValueError: If `max_seq_length` leaves no room for a word or exceeds the model's positions, if
            `similarity` is unknown, or if the model is no dense encoder or was saved with another similarity.
    """
    if similarity is not None:
        check_similarity(similarity)
    name = checked_name(name_or_path)
    saved = check_saved_class(name, "SentenceTransformer")
    modules = None
    if saved is None:
        # sentence-transformers would build the same pooling, but with a warning.
        transformer = Transformer(name)
        modules = [transformer, Pooling(transformer.get_embedding_dimension(), pooling_mode="mean")]
    model = SentenceTransformer(
        None if modules else name, modules=modules, device=device, similarity_fn_name=similarity
    )
    check_similarity(model.similarity_fn_name)
    set_max_seq_length(model, max_seq_length)
    return model

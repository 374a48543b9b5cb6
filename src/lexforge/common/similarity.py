"""The two similarities of the field, dot product and cosine: one type and one check for every room."""

from __future__ import annotations

from typing import Literal, TypeAlias, cast, get_args

Similarity: TypeAlias = Literal["cosine", "dot"]


def check_similarity(similarity: object) -> Similarity:
    """Return the similarity if it is one that this package trains and searches with.

    Args:
        similarity: The name to check; an enumeration member whose value is such a name is accepted too.

    Returns:
        "cosine" or "dot".

    Raises:
        ValueError: If it is anything else.
    """
    name = getattr(similarity, "value", similarity)
    if name not in get_args(Similarity):
        raise ValueError(f'similarity must be "cosine" or "dot"; received {name!r}')
    return cast(Similarity, name)


def similarity_of(model: object) -> Similarity:
    """Return the similarity by which a model is searched, which training should use too.

    Args:
        model: An encoder with the attribute `similarity_fn_name`; without it, or where it is None, the
            similarity is the dot product.

    Returns:
        "cosine" or "dot".

    Raises:
        ValueError: If the model's similarity is another one.
    """
    return check_similarity(getattr(model, "similarity_fn_name", None) or "dot")

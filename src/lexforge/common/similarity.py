"""The two similarities of this package, dot product and cosine: one type, one check and one policy.

The policy: a model is trained by the similarity that it is searched by, which its `similarity_fn_name` says.
A loss takes that similarity and refuses any other one, because rankings by cosine and by dot product differ.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, cast, get_args

Similarity: TypeAlias = Literal["cosine", "dot"]
"""How two vectors are compared, in training and in search."""


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


def agreed_similarity(model: object, similarity: object = None, *, loss: str) -> Similarity:
    """Return the one similarity of training and search, or refuse a loss that would train by another one.

    Args:
        model: The encoder to train, wrapped in DistributedDataParallel or not. One without a
            `similarity_fn_name`, or where it is None, agrees with every similarity, and is searched by dot
            product.
        similarity: The similarity that the loss was given or is defined on; None takes the model's.
        loss: Name of the loss, for the message.

    Returns:
        "cosine" or "dot".

    Raises:
        ValueError: If one of the two names is unknown, or the loss and the model name different ones.
    """
    name = getattr(getattr(model, "module", model), "similarity_fn_name", None)
    stated = check_similarity(name) if name else None
    if similarity is None:
        return stated or "dot"
    wanted = check_similarity(similarity)
    if stated not in (None, wanted):
        raise ValueError(
            f"{loss} trains by {wanted!r}, but the model is searched by {stated!r}; "
            f"set model.similarity_fn_name = {wanted!r} before the loss is made, so that training and search "
            "agree"
        )
    return wanted

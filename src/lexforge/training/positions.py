"""Position embeddings in a training whose texts are shorter than those that the model reads later."""

from __future__ import annotations

from torch import Tensor, nn

_NAMES = ("position_embeddings", "wpe", "embed_positions")  # of BERT and its kin, of GPT-2 and of OPT


def freeze_positions(model: nn.Module) -> list[Tensor]:
    """Take the gradient from the learned embeddings of positions.

    If training cuts texts, the embeddings of later positions get no gradient. Those of the first positions
    would move away from them, and the rest of the model would follow: a term past the cut would then get
    another weight than the same term before it. With models from scratch, trained on 96 of 384 tokens, this
    cost up to .04 of nDCG@10 on docstrings.

    Args:
        model: The model. Without learned positions, as with rotary ones, nothing changes.

    Returns:
        The parameters that had a gradient.
    """
    frozen = [
        module.weight
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding)
        and name.rsplit(".", 1)[-1] in _NAMES
        and module.weight.requires_grad
    ]
    for parameter in frozen:
        parameter.requires_grad_(False)
    return frozen

"""Position embeddings that a training leaves alone."""

from __future__ import annotations

from torch import Tensor, nn

_NAMES = ("position_embeddings", "wpe", "embed_positions")  # of BERT and its kin, of GPT-2 and of OPT


def freeze_positions(model: nn.Module) -> list[Tensor]:
    """Take the gradient from the learned embeddings of positions.

    AdamW moves each weight by about the learning rate, however small its gradient. What a short training
    shows of one position is noise, and the sum of such moves soon outweighs the vectors of frequent words, so
    the same word weighs something else at each place. From scratch this cost up to .04 of nDCG@10 on
    docstrings (300 steps, rate 5e-4), of which most came back with one average move for all positions.

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

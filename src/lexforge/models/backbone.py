"""What the option `--model` of a recipe names: a checkpoint, or a backbone that is built from the corpus."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

LEXICAL = "lexical"
"""The name of the backbone that is built from the corpus."""


def resolve_backbone(
    name: str, texts: Sequence[str], folder: str | Path, *, max_seq_length: int, seed: int
) -> str | Path:
    """Return the checkpoint to load an encoder from, and build it first if it is the lexical backbone.

    A backbone that an earlier call left in the folder is used again: a resumed run continues from it, and of
    several processes only the first one builds it.

    Args:
        name: `lexical`, or the folder or hub name of a checkpoint, which is returned as it is.
        texts: The documents that give the lexical backbone its vocabulary and its weights.
        folder: Where the lexical backbone is saved.
        max_seq_length: Longest text of the lexical backbone in tokens, special tokens included.
        seed: Seed of the random vectors of the lexical backbone.

    Returns:
        `folder` for `lexical`, else `name`.

    Raises:
        ValueError: If the texts give no vocabulary.
    """
    if name != LEXICAL:
        return name
    if not Path(folder).is_dir():
        # Imported here, because a command line reads the name `lexical` before it needs torch.
        from lexforge.models.lexical_init import build_lexical_backbone

        build_lexical_backbone(texts, folder, max_seq_length=max_seq_length, seed=seed)
    return folder

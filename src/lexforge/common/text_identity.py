"""One number per text, by which equal texts are recognised in a batch, and digests of texts and passages."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from lexforge.common.types import Passage

NO_TEXT = 2**63 - 1
"""The number that no text has; it fills up lists of identities, and sorts behind all of them."""


def text_identity(text: str) -> int:
    """Return the identity of a text: the first 64 bits of a cryptographic hash of its UTF-8 bytes.

    Equal texts have equal identities in every process and on every machine. Texts that differ, even by a
    space, have different ones but for a chance of 2^-64 per pair.

    Args:
        text: Any text.

    Returns:
        A signed 64-bit integer other than `NO_TEXT`.
    """
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return min(int.from_bytes(digest, "little", signed=True), NO_TEXT - 1)


def text_digest(texts: Iterable[str]) -> str:
    """Compute a digest of texts and of where one ends and the next begins.

    Args:
        texts: Any number of texts; their order changes the digest.

    Returns:
        40 hexadecimal digits.
    """
    digest = hashlib.blake2b(digest_size=20)
    for text in texts:
        # The length before each text keeps ["ab", "c"] apart from ["a", "bc"].
        data = text.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def passage_digest(passage: Passage) -> bytes | None:
    """Compute a digest by which a passage is recognised that says nothing new.

    It does not see which white space stands between words, nor a title that is only the name of the file,
    because a copy under another name says nothing new.

    Args:
        passage: Any passage.

    Returns:
        16 bytes; None for a blank passage.
    """
    file = Path(passage.document)  # a name without an ending is that of a row, whose title may be its id
    named = passage.text and passage.title and file.suffix and passage.title == title_of_name(file)
    digest, blank = hashlib.blake2b(digest_size=16), True
    # A whole book as one list of words would fill the memory.
    for line in (passage.text if named else passage.joined).split("\n"):
        folded = " ".join(line.split())
        if folded:
            digest.update(f" {folded}".encode("utf-8", "surrogatepass"))
            blank = False
    return None if blank else digest.digest()


def title_of_name(path: Path) -> str:
    """Return the title of a file that has no other."""
    return " ".join(path.stem.replace("_", " ").replace("-", " ").split())

"""Where a client connects to, what it may send there, and which documents a collection may hold already."""

from __future__ import annotations

from pathlib import Path


def chosen_address(directory: str | Path, saved: str, uri: str | None, token: str, *, is_file: bool) -> str:
    """Return the address of a saved index, and refuse to send a token to one that the caller did not name.

    Whoever can write to the folder of an index can write an address into it. A token that went there would be
    theirs.

    Args:
        directory: The folder of the saved index.
        saved: The address that it names.
        uri: The address that the caller names; None if the caller names none.
        token: What the client would send; empty if it sends none.
        is_file: Whether `saved` is a file or folder of this machine, to which nothing is sent.

    Returns:
        The address to connect to.

    Raises:
        ValueError: If there is a token, and only the folder names an address.
    """
    if uri is not None:
        return uri
    if token and not is_file:
        raise ValueError(
            f"a token is sent only to an address that the caller names; received a token and no uri, and "
            f"{directory} names {saved}: pass uri (--uri) if that is the right server"
        )
    return saved


def check_address(uri: str, engine: str, example: str) -> None:
    """Refuse an address that contains credentials, because a saved index would write them down.

    Raises:
        ValueError: If it does.
    """
    if "@" in uri:
        raise ValueError(
            f"the uri of {engine} must not contain credentials, because it is saved with the index; pass "
            f"them as `token`, and the uri as {example}"
        )


def check_same_documents(where: str, there: list[str], ids: list[str]) -> None:
    """Refuse to build over a collection that holds other documents.

    Args:
        where: The collection, for the message.
        there: The ids of the documents that it holds.
        ids: The ids of the documents to build of.

    Raises:
        ValueError: If an id that is there is not the one of the same position.
    """
    for position, (old, new) in enumerate(zip(there, ids, strict=False)):
        if old != new:
            raise ValueError(
                f"{where} holds {old!r} at position {position}, these documents {new!r}: drop that "
                "collection, or choose another name"
            )

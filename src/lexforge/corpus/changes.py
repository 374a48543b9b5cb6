"""Documents that come and go: an index on the disk takes new ones and loses old ones, in one step."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from sentence_transformers.base.model import BaseModel

from lexforge.common.text_identity import passage_digest
from lexforge.common.types import Passage
from lexforge.corpus.encoding import encode, join_vectors
from lexforge.corpus.stored_index import new_generation, open_index, read_source
from lexforge.models.fingerprint import fingerprint
from lexforge.retrieval.backends import BACKENDS
from lexforge.retrieval.faiss import FaissIndex
from lexforge.retrieval.inverted import InvertedIndex
from lexforge.storage.lock import locked


@dataclass(frozen=True)
class Change:
    """What became of the documents of an index, in passages.

    Args:
        added: Number of given passages with a text that is new to the index; these were encoded.
        unchanged: Number of given passages whose text the index holds already, of this passage or another.
        deleted: Number of passages that are gone, among them the old texts of documents with new ones.
    """

    added: int
    unchanged: int
    deleted: int


def change_index(
    directory: str | Path,
    model: BaseModel,
    added: Mapping[str, Passage] | None = None,
    deleted: Collection[str] = (),
    *,
    replaced: Collection[str] = (),
    batch_size: int = 32,
) -> Change:
    """Add documents to an index on the disk, replace them and delete them, in one step.

    Only new texts are encoded. The index is then built anew of all vectors, which memory must hold. Readers
    see the old state until the new one is complete; a killed call changes nothing.

    A passage that repeats another one is left out, and takes its place when that one goes.

    Args:
        directory: The directory that `build_index` wrote, of an index that keeps its texts.
        model: The encoder that made the index.
        added: Passage id -> passage. A document that the index has already is replaced by these passages.
        deleted: Ids of documents, all of whose passages go, or of single passages.
        replaced: Ids of documents that lose their old passages though `added` may hold none of theirs, such
            as documents whose new text is blank. The index need not have them.
        batch_size: Number of texts per forward pass.

    Returns:
        How many passages came and went.

    Raises:
        BlockingIOError: If another process or thread changes the index.
        FileNotFoundError: If the directory holds no index.
        ValueError: If a server keeps the vectors, the index keeps no texts, the model is another one, an id
            to be deleted is unknown, an id to be added belongs to a passage of another document, or no
            document would be left.
    """
    directory, added = Path(directory), added or {}
    read_source(directory)  # before a file for the lock is made in a folder that is no index
    with locked(directory):
        index, source, passages = open_index(directory)
        if not isinstance(index, InvertedIndex | FaissIndex):
            raise ValueError(
                f"a server keeps the vectors of the index {source.index_name!r}: change them by its own "
                "client, or make the index again"
            )
        if passages is None:
            raise ValueError(
                f"{directory} keeps no texts, so its documents cannot be told apart; make it again with "
                "--documents"
            )
        if fingerprint(model) != source.fingerprint:
            raise ValueError(f"the model must be {source.model}, which made the index; received another one")
        stored = {**passages, **passages.repeated}
        kept, renewed = {}, {*replaced, *(passage.document for passage in added.values())}
        known = set(deleted)
        found = set()
        for key, passage in stored.items():
            hit = {key, passage.document} & known
            found |= hit
            if not hit and (
                passage.document not in renewed or _identity(added.get(key)) == _identity(passage)
            ):
                kept[key] = passage
        if unknown := [key for key in dict.fromkeys(deleted) if key not in found]:
            raise ValueError(f"{directory} has no document {', '.join(map(repr, unknown[:3]))}")
        new = {key: one for key, one in added.items() if _identity(kept.get(key)) != _identity(one)}
        check_ids(kept, new)
        if not new and len(kept) == len(stored):
            return Change(0, len(added), 0)
        if not kept and not new:
            raise ValueError(f"no document of {directory} would be left; delete the folder instead")
        remaining = {key: passage for key, passage in kept.items() if key in passages}
        # Those that were left out come first: they were there before the new ones.
        others = {key: passage for key, passage in {**kept, **new}.items() if key not in remaining}
        coming, repeated = _divided(others, {passage_digest(passage) for passage in remaining.values()})
        came = len(coming.keys() & new.keys())
        parts = [index.vectors(list(remaining))] if remaining else []
        if coming:
            texts = [passage.joined for passage in coming.values()]
            parts.append(encode(model, texts, "document", batch_size=batch_size, show_progress_bar=True))
        after = {**remaining, **coming}
        backend = BACKENDS[source.index_name]
        built = backend.index.build(join_vectors(parts), list(after), index.similarity, **backend.settings)
        _remove_other_generations(directory, source.folder)  # one that a killed call left
        source = replace(source, generation=source.generation + 1)
        with new_generation(directory, source, after, repeated) as folder:
            built.save(folder)
        _remove_other_generations(directory, source.folder)
    return Change(came, len(added) - came, len(stored) - len(kept))


def _identity(passage: Passage | None) -> tuple[str, str] | None:
    """Return what tells passages apart; an index that was made of vectors holds title and text as one."""
    return None if passage is None else (passage.joined, passage.document)


def check_ids(kept: Mapping[str, Passage], new: Mapping[str, Passage]) -> None:
    """Refuse ids that would name a passage of one document and another document or its passage.

    Raises:
        ValueError: If there is one; whoever deletes a document would lose a passage of the other.
    """
    owners = {passage.document: passage.document for passage in kept.values()}
    owners |= {key: passage.document for key, passage in kept.items()}
    for key, passage in new.items():
        for id in (key, passage.document):
            if owners.get(id, passage.document) != passage.document:
                raise ValueError(
                    f"the id {id!r} belongs to a passage of the document {owners[id]!r}; received it for one "
                    f"of {passage.document!r}"
                )


def _divided(
    passages: Mapping[str, Passage], known: set[bytes | None]
) -> tuple[dict[str, Passage], dict[str, Passage]]:
    """Divide passages into those that say something new, and those that repeat another one.

    Args:
        passages: Passage id -> passage.
        known: The digests of what is known already.
    """
    new, repeated, known = {}, {}, {*known}
    for key, passage in passages.items():
        digest = passage_digest(passage)
        if digest is not None and digest in known:
            repeated[key] = passage
        else:
            new[key] = passage
            known.add(digest)
    return new, repeated


def _remove_other_generations(directory: Path, current: str) -> None:
    for folder in directory.glob("generation-*"):
        if folder.name != current:
            with suppress(OSError):  # Windows deletes no file that a reader has open; the next call does
                shutil.rmtree(folder)

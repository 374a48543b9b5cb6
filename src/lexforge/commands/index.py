"""Make an index of documents that can be searched, and change its documents.

    lexforge index --documents DOCUMENTS --model MODEL --output INDEX
    lexforge index --add MORE --output INDEX
    lexforge index --delete ID ID --output INDEX

DOCUMENTS are a folder of texts, a file of rows, a folder in BEIR layout, or another name that the recipes
take. Long documents are divided into passages of what the model reads, at the borders of paragraphs. The
vectors lie in `INDEX.unfinished` while they are computed, so a killed call goes on where it was when it is
made again. `lexforge search INDEX` and `lexforge serve --index INDEX` search the index.

A large corpus is first encoded by `lexforge encode`, by one process or by many:

    lexforge index --vectors VECTORS --output INDEX
    lexforge index --vectors VECTORS --index milvus --uri http://host:19530 --output INDEX
    lexforge index --vectors VECTORS --index qdrant --uri http://host:6333 --output INDEX

With `--index milvus` the vectors go to a server, or to a file that ends in `.db` (Milvus Lite), and with
`--index qdrant` to a server, or to a folder that ends in `.qdrant`; INDEX holds the address. A collection of
that name must not be there yet; drop that of an interrupted build. The credentials of a server are read from
the environment variable MILVUS_TOKEN or QDRANT_API_KEY. `--documents` beside `--vectors` keeps the texts that
were encoded in the index, so that a search shows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from lexforge import corpus, data, models, retrieval
from lexforge.common.command_line import printable, refuse_unread
from lexforge.common.types import DataError, Passage
from lexforge.settings import NO_PREFIX, IndexName, SourceOptions, server_options
from lexforge.storage.files import check_new

if TYPE_CHECKING:
    from sentence_transformers.base.model import BaseModel

UNKNOWN_SHARE = 0.01  # share of unknown tokens that is told; a language that a model knows has next to none


@dataclass(frozen=True)
class Config:
    """What to index, by which index, and where to."""

    output: Path  # a new or empty folder; that of the index with --add and --delete
    documents: str | None = None  # what is searched; the index keeps the texts
    model: str | None = None  # the encoder of --documents: a folder, a run directory or a hub name
    max_seq_length: int | None = None  # tokens of a passage; None takes the model's own limit
    batch_size: int = 32  # texts per forward pass
    source: Annotated[SourceOptions, NO_PREFIX] = SourceOptions()
    add: str | None = None  # documents that come to the index, or replace those of their ids
    delete: tuple[str, ...] = ()  # ids of documents or passages that leave the index
    vectors: Path | None = None  # the folder that `lexforge encode` wrote
    index: IndexName | None = None  # None takes the exact index of such vectors
    uri: str | None = None  # for Milvus and Qdrant: http://host:port, or a name that ends in .db or .qdrant
    collection: str = "lexforge"  # for Milvus and Qdrant: name of the new collection


def main(cfg: Config) -> None:
    """Build the index, or change its documents."""
    if cfg.add is not None or cfg.delete:
        change(cfg)
        return
    check_new(cfg.output)
    if cfg.uri is None:
        refuse_unread(cfg, ["collection"], "only an index at an address, --uri, has one")
    options = server_options(cfg.uri, cfg.collection, cfg.index)
    if cfg.vectors is not None:
        index = index_vectors(cfg, cfg.vectors, options)
    elif cfg.documents is not None and cfg.model is not None:
        model = models.load_encoder(cfg.model, cfg.max_seq_length)
        library = read_library(cfg.documents, cfg.source, model)
        index = corpus.index_passages(
            model,
            library.passages,
            cfg.output,
            name=cfg.model,
            repeated=library.repeated,
            index_name=cfg.index,
            batch_size=cfg.batch_size,
            **options,
        )
    else:
        raise ValueError(
            "an index is made of --documents and --model, or of the --vectors of `lexforge encode`; received "
            f"documents {cfg.documents}, model {cfg.model} and no vectors"
        )
    passages = "passage" if len(index) == 1 else "passages"
    print(f"index of {len(index)} {passages}, {index.nbytes:,} bytes, saved to {cfg.output}")


def index_vectors(cfg: Config, vectors: Path, options: dict[str, Any]) -> retrieval.Index:
    """Make an index of vectors that `lexforge encode` wrote."""
    refuse_unread(cfg, ["model", "max_seq_length", "batch_size"], "--vectors name the model that made them")
    if cfg.documents is None:
        refuse_unread(cfg, ["source"], "--vectors alone read no documents")
    encoded = corpus.EncodedCorpus(vectors)
    passages = None
    if cfg.documents is not None:
        texts = data.load_documents(cfg.documents, cfg.source)
        passages = {key: Passage("", text, key) for key, text in texts.items()}
    return corpus.build_index(encoded, cfg.output, cfg.index, passages=passages, **options)


def change(cfg: Config) -> None:
    """Add, replace and delete documents of an index."""
    settings = ["documents", "vectors", "max_seq_length", "index", "uri", "collection"]
    refuse_unread(cfg, settings, "--add and --delete change the index at --output, and keep its settings")
    if cfg.add is None:
        refuse_unread(cfg, ["source"], "--delete reads no documents")
    source = corpus.read_source(cfg.output)
    model = corpus.load_encoder_of(cfg.output, source, cfg.model)
    library = None if cfg.add is None else read_library(cfg.add, cfg.source, model)
    if library is not None and library.numbered:
        raise DataError(
            f"{cfg.add} has no column of ids, so its rows would take the places of the documents 1, 2 and so "
            "on of the index; add a column `id` that also tells them from those of other files"
        )
    done = corpus.change_index(
        cfg.output,
        model,
        None if library is None else {**library.passages, **library.repeated},
        cfg.delete,
        replaced=() if library is None else library.documents,
        batch_size=cfg.batch_size,
    )
    print(
        f"{cfg.output}: passages added: {done.added}, deleted: {done.deleted}, "
        f"there already: {done.unchanged}"
    )


def read_library(
    documents: str, options: SourceOptions, model: BaseModel, *, keep_all: bool = False
) -> data.Library:
    """Read documents, divide them into passages of what a model reads, and print what was left out."""
    limit = corpus.token_limit(model)
    library = data.load_library(
        documents,
        options,
        count_tokens=None if limit is None else partial(corpus.count_tokens, model),
        max_tokens=limit,
        keep_all=keep_all,
    )
    for note in library.notes:
        print(printable(note))
    tell_unknown_tokens(model, list(library.texts.values()))
    return library


def check_apart(output: Path, documents: str) -> None:
    """Refuse a folder for a model that lies in the documents: its card would be one of them the next time.

    Raises:
        ValueError: If it lies there.
    """
    if output.resolve().is_relative_to(Path(documents).resolve()):
        raise ValueError(
            "--output must not lie in the documents, which would grow by its files; received "
            f"{output} in {documents}"
        )


def tell_unknown_tokens(model: BaseModel, texts: Sequence[str]) -> None:
    """Print the share of the tokens that a model does not know, where it is more than a few."""
    unknown = corpus.unknown_share(model, texts)
    if unknown > UNKNOWN_SHARE:
        print(
            f"{unknown:.1%} of the tokens are unknown to the model, which cannot tell them apart: it may not "
            "know the language of these documents"
        )

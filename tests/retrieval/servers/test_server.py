"""Where a client connects to: a token goes to no address that only a file names."""

from __future__ import annotations

from pathlib import Path

import pytest

from lexforge.corpus import build_index, open_index


@pytest.mark.parametrize(
    ("package", "name", "file"),
    [("pymilvus", "milvus", "v.db"), ("qdrant_client", "qdrant", "v.qdrant")],
)
def test_no_client_is_made_for_a_saved_address_and_a_token(
    package: str, name: str, file: str, tiny_splade, tmp_path: Path, monkeypatch
) -> None:
    """Whoever writes the folder of an index could name a server of their own, and would be sent the key."""
    pytest.importorskip(package, reason=f"the extra `{name}` is not installed")
    if name == "milvus":
        pytest.importorskip("milvus_lite", reason="the extra `milvus` is not installed")
    import importlib

    from lexforge.corpus import EncodedCorpus, encode_corpus
    from lexforge.storage.manifest import read_manifest, write_manifest

    engine = importlib.import_module(f"lexforge.retrieval.servers.{name}")
    encode_corpus(tiny_splade, {"a": "sort the list", "b": "open file"}, tmp_path / "corpus", name="tiny")
    out = tmp_path / "out"
    build_index(EncodedCorpus(tmp_path / "corpus"), out, name, uri=str(tmp_path / file)).close()
    saved = out / "generation-1" / "index"
    fields = read_manifest(saved, engine.FORMAT)
    (saved / "manifest.json").unlink()
    write_manifest(saved, engine.FORMAT, {**fields, "uri": "http://stranger:1", "local": False})
    connections: list[tuple[str, str]] = []

    def connect(uri: str = "", *, url: str = "", token: str = "", api_key: str | None = None, **_):
        connections.append((uri or url, token or api_key or ""))
        raise ConnectionError("not in a test")

    monkeypatch.setattr(f"{package}.{'MilvusClient' if name == 'milvus' else 'QdrantClient'}", connect)
    tokens = {name: "secret"}
    with pytest.raises(ValueError, match=r"a token and no uri, and .* names http://stranger:1: pass uri"):
        open_index(out, tokens=tokens)
    assert connections == []
    with pytest.raises(ConnectionError, match="not in a test"):
        open_index(out, uri="http://own:1", tokens=tokens)
    with pytest.raises(ConnectionError, match="not in a test"):
        open_index(out, tokens={"inverted": "other"})
    assert connections == [("http://own:1", "secret"), ("http://stranger:1", "")]


def test_an_index_without_a_server_takes_no_address(tiny_splade, tmp_path: Path) -> None:
    """A flag that nothing reads would let the user believe that the server is searched."""
    from lexforge.corpus import EncodedCorpus, encode_corpus

    encode_corpus(tiny_splade, {"a": "sort the list"}, tmp_path / "corpus", name="tiny")
    build_index(EncodedCorpus(tmp_path / "corpus"), tmp_path / "out", "inverted")
    with pytest.raises(ValueError, match="the index 'inverted', which has no address; received 'http://x:1'"):
        open_index(tmp_path / "out", uri="http://x:1")

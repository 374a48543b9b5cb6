"""An encoder for another runtime, on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lexforge.commands import export_model


def test_an_export_that_no_engine_has_loaded_says_so(
    corpus_folder: Path, tiny_checkpoint: Path, tmp_path: Path, capsys
) -> None:
    """Who reads neither the help nor the documentation meets it in the result and in the folder."""
    (corpus_folder / "queries.jsonl").write_text(json.dumps({"_id": "q", "text": "a tree"}) + "\n")
    (corpus_folder / "qrels").mkdir()
    (corpus_folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\td2\t1\n")
    (corpus_folder / "qrels" / "train.tsv").write_text("a split that is not measured is not read\n")
    out = tmp_path / "out"
    export_model.main(export_model.Config(str(tiny_checkpoint), "opensearch", out, data=str(corpus_folder)))
    printed = capsys.readouterr().out
    assert "2 query texts in libtorch: largest difference" in printed  # one more is too long for any model
    assert f"{tiny_checkpoint} exported for opensearch to {out}\n- Experimental: these files were" in printed
    (limit,) = json.loads((out / "export.json").read_text())["limits"]
    assert f"- {limit}\n" in printed
    assert "the documentation of OpenSearch, and were never loaded into a running one" in limit


def test_an_export_without_data_says_what_it_reads(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    """Thousands of files of other packages were read, and nothing said why."""

    def read(*_: object) -> None:
        raise RuntimeError("reads")

    monkeypatch.setattr(export_model.data, "load_retrieval_data", read)
    with pytest.raises(RuntimeError, match="reads"):
        export_model.main(export_model.Config(str(tiny_checkpoint), "onnx", tmp_path / "out"))
    assert "checks the export on the docstrings of installed packages; --data DIR" in capsys.readouterr().out
    with pytest.raises(RuntimeError, match="reads"):
        export_model.main(export_model.Config(str(tiny_checkpoint), "onnx", tmp_path / "out", data="folder"))
    assert not capsys.readouterr().out

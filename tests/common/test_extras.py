"""How to install an extra is said in one form, which no stranger's package on PyPI can answer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lexforge.common.extras import missing_extra

ROOT = Path(__file__).resolve().parents[2]


def test_the_error_says_where_the_command_works() -> None:
    """`.[milvus]` installs from the folder that it is typed in, so the line names that folder."""
    with pytest.raises(ModuleNotFoundError) as absent:
        import no_such_package  # type: ignore[import-not-found]  # noqa: F401
    error = missing_extra("MilvusIndex", "milvus", absent.value)
    assert isinstance(error, ImportError)
    assert str(error) == (
        "MilvusIndex needs the extra 'milvus': in a checkout of lexforge, pip install '.[milvus]' "
        "(No module named 'no_such_package')"
    )


def test_nothing_asks_pypi_for_lexforge() -> None:
    """The name is free there: whoever takes it would run code on the machine of each reader."""
    texts = [path for end in ("py", "md") for path in ROOT.glob(f"[!.]*/**/*.{end}")] + [ROOT / "README.md"]
    asks = re.compile(r"pip install (-\S+ )*['\"]?lexforge")
    told = [path for path in texts if asks.search(path.read_text(encoding="utf-8"))]
    assert told == []

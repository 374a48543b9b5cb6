"""The name of the processor keys what is measured on it."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from lexforge.common.processor import processor_name

X86 = "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC\n"


def test_generations_of_one_brand_are_told_apart(tmp_path: Path) -> None:
    """Virtual machines report "AMD EPYC" alone, and what is fast on one is slow on another."""
    file = tmp_path / "cpuinfo"
    file.write_text(X86 + "\n" + X86.replace("26", "25"))
    assert processor_name(file) == "AMD EPYC (family 26, model 2)"


@pytest.mark.parametrize("content", ["", "BogoMIPS\t: 100\n"])
def test_elsewhere_python_names_it(content: str, tmp_path: Path) -> None:
    """Other systems have no such file, and ARM kernels give no model name."""
    file = tmp_path / "cpuinfo"
    if content:
        file.write_text(content)
    assert processor_name(file) == (platform.processor() or platform.machine())
    named = tmp_path / "named"
    named.write_text("model name\t: Some Core\n")
    assert processor_name(named) == "Some Core (family ?, model ?)"

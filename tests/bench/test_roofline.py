"""What the GPU head should cost: numbers worked by hand, and measured rows beside them."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="the extra `triton` is not installed")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def roofline() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "scripts" / "bench" / "roofline.py"))


def test_numbers_worked_by_hand(roofline: dict[str, Any]) -> None:
    """The products of 16,384 tokens take .78 ms at 989 TFLOP/s, or 6.4 ms for the vocabulary of XLM-R; each
    of 239 x 64 tiles reads 128 + 256 rows of 1,536 bytes; 1,700 rows of 64 texts are gathered, of the float32
    weight and of the states in bf16.
    """
    card = roofline["CARDS"]["H100"]
    for V, ideal in ((30_522, 0.777), (250_002, 6.362)):
        found = roofline["summary"](card, V, 768, 64, 256, 1_700)["forward"]
        assert found[0] == pytest.approx(ideal, abs=1e-3)
        assert found[0] < found[1] < found[2]
    passes = roofline["passes"](card, 30_522, 768, 64, 256, 1_700)
    forward = passes["forward"][-1]
    assert forward.l2 == pytest.approx(239 * 64 * (128 + 256) * 1_536 / 1e6)
    gathered = [step.l2 for step in passes["backward"] if step.name in ("grad_hidden", "grad_weight")]
    assert gathered == pytest.approx([64 * 1_700 * 3_072 / 1e6, 64 * 1_700 * 1_536 / 1e6])


@pytest.mark.parametrize(
    "shape", [(30_522, 128, 1, 1, 1), (250_002, 768, 256, 256, 250_002), (100, 16, 3, 7, 50)]
)
def test_no_kernel_beats_the_ideal(roofline: dict[str, Any], shape: tuple[int, ...]) -> None:
    """What is expected leaves out nothing that the ideal counts, from one token to a large batch."""
    for card in roofline["CARDS"].values():
        for ideal, fast, slow in roofline["summary"](card, *shape).values():
            assert 0 < ideal <= fast <= slow


def test_measured_rows(roofline: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a CSV that grows, the rows of the last commit and of this head are shown, both passes of each."""
    rows = [
        "V,D,B,L,active,impl,forward_ms,step_ms,commit,device",
        "30522,768,64,256,1700,triton,9,9,old,NVIDIA H100 80GB HBM3",
        "30522,768,64,256,all,triton,1.5536,5.5,new,NVIDIA H100 80GB HBM3",
        "30522,768,64,256,all,tiled,9,9,new,NVIDIA H100 80GB HBM3",
        "30522,768,64,256,all,triton,9,9,new,another card",
    ]
    file = tmp_path / "head.csv"
    file.write_text("\n".join(rows), encoding="utf-8")
    roofline["print_measured"](file)
    forward, backward = capsys.readouterr().out.splitlines()
    assert forward.startswith(
        "| V 30522 D 768 B 64 L 256 active 30522 forward: 1.55 ms = 2.0 x ideal, expected"
    )
    assert " backward: 3.95 ms = " in backward

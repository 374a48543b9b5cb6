"""Write the page of a run: one HTML file that shows what the run did, or two runs side by side.

    lexforge report runs/splade_v26
    lexforge report runs/first runs/second --output compared.html

The run may have ended, go on or have crashed: the page shows what it has left so far, and says what is
missing. The file needs no network and opens from the disk.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro


@dataclass(frozen=True)
class Config:
    """Which runs to show, and where to write the page."""

    run: tyro.conf.Positional[Path]  # a run directory
    other: tyro.conf.Positional[Path | None] = None  # a second one to compare with
    # The file; None is report.html in the (first) run directory, with two runs report-with-<OTHER>.html.
    output: Path | None = None


def main(cfg: Config) -> None:
    """Write the page, say where it lies, and print what the diagnosis found."""
    # Imported here, because --help need not wait for torch.
    from lexforge.report import diagnose, findings_text, write_page

    print(write_page(cfg.run, cfg.other, output=cfg.output))
    for run in filter(None, (cfg.run, cfg.other)):
        print(f"\nDiagnosis of {run}:\n{findings_text(diagnose(run))}")

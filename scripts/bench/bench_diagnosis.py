"""What the diagnosis measures in runs that exist: one row per run, from which its thresholds were chosen.

    python scripts/bench/bench_diagnosis.py runs/presets/*/*/*/run --language korquad=ko

Each argument is the run directory of recipes/splade_v26.py. Its model encodes the texts that it was tested
on, and diagnosis.json of the run is written anew. Rows go to results/diagnosis.csv.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from common import append_rows

from lexforge import data, evaluation, models, report


def row(run: Path, language: str | None) -> dict[str, Any]:
    """The numbers of one run: its settings in short, and the value of each symptom."""
    config = json.loads((run / "config.json").read_text(encoding="utf-8"))
    language = language or config["language"]
    model = models.load_encoder(run / "model")
    measured = data.load_training_data(config["data"], ["test"]).measured
    documents = list(measured.corpus.values())
    report.record_symptoms(
        run,
        model,
        evaluation.RetrievalEvaluator(measured.queries, measured.corpus, measured.split("test")),
        idf=data.corpus_idf(
            documents,
            model.tokenizer,
            config["max_seq_length"],
            vocabulary_size=models.vocabulary_size(model),
        ),
        stopword_ids=data.stopword_ids(model.tokenizer, language),
    )
    return {
        "set": Path(config["data"]).name,
        "preset": config["preset"],
        "model": Path(config["model"]).name,
        "steps": config["train"]["steps"],
        **{
            finding.symptom.name: "" if finding.number is None else round(finding.number, 4)
            for finding in report.diagnose(run)
        },
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--language", action="append", default=[], metavar="SET=CODE")
    options = parser.parse_args()
    languages = dict(pair.split("=") for pair in options.language)
    for one in options.runs:
        name = Path(json.loads((one / "config.json").read_text(encoding="utf-8"))["data"]).name
        append_rows("diagnosis", [row(one, languages.get(name))])

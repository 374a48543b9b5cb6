"""A plan measures a few steps of a run, says what the whole would take, and leaves nothing behind."""

from __future__ import annotations

import gc
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lexforge import corpus
from lexforge.runs import Stages
from lexforge.settings import EvaluationSettings, RecipeSettings, TrainingSettings
from lexforge.training import Plan, begin_run
from lexforge.training.plan import NEVER, TIMED, WARM


def plan_of(settings: TrainingSettings, rows: int, ranks: int = 1, **others: Any) -> Plan:
    process: Any = SimpleNamespace(num_processes=ranks, is_main_process=True)
    cfg = SimpleNamespace(**({"train": settings, "resume": False} | others))
    plan = Plan(cfg, process, Stages(process))
    plan.some([{"anchor": str(row)} for row in range(rows)])
    return plan


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({"steps": 7}, 7),
        ({"epochs": 3, "batch_size": 4, "gradient_accumulation_steps": 1}, 3 * 25),
        ({"epochs": 3, "batch_size": 8, "gradient_accumulation_steps": 2}, 3 * 6),  # of 12 whole batches
        ({"epochs": 2.5, "batch_size": 8, "gradient_accumulation_steps": 5}, 8),  # 2.5 times 3, rounded up
    ],
)
def test_the_steps_are_those_of_the_whole_run(settings: dict[str, Any], steps: int) -> None:
    """Of all rows, though the plan trains on some; an incomplete batch is dropped."""
    assert plan_of(TrainingSettings(**settings), 101).steps == steps


def test_rows_for_the_measured_steps_are_drawn() -> None:
    """A teacher embeds the texts of rows before training, which could be millions."""
    settings = TrainingSettings(steps=7, batch_size=2, gradient_accumulation_steps=1)
    plan = plan_of(settings, 101)
    assert plan.rows == 101
    rows = [{"anchor": str(row)} for row in range(101)]
    some = plan.some(rows)
    assert len(some) == plan.drawn == 2 * 2 * (WARM + TIMED)
    assert len({row["anchor"] for row in some}) == len(some)
    assert plan_of(settings, 5).drawn == 5


def test_ranks_share_the_rows() -> None:
    """Two of them take twice as many rows in a step, and so half the steps."""
    settings = TrainingSettings(epochs=3, batch_size=4, gradient_accumulation_steps=2)
    plan = plan_of(settings, 1000, ranks=2)
    assert plan.rows_per_step == 16
    assert plan.steps == 3 * 63  # 125 batches of each rank, two a step
    assert plan.drawn == 2 * 16 * (WARM + TIMED)


def test_what_cannot_be_planned_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is read. Machines share no temporary folder."""
    with pytest.raises(ValueError, match="leave --resume out"):
        plan_of(TrainingSettings(), 5, resume=True)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="of one machine; received 4, of which 2 are on this one"):
        plan_of(TrainingSettings(), 5, ranks=4)


@pytest.mark.parametrize("eval_steps", [15, 0.37])  # the second is a share of all steps
def test_a_trainer_is_measured(
    make_trainer: Callable[..., Any],
    fresh: Callable[[], Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    eval_steps: float,
) -> None:
    """The numbers of the plan are those of the run that follows, and nothing is written."""
    trainer = make_trainer(fresh(), tmp_path / "planned", arguments={"save_steps": NEVER})
    settings = TrainingSettings(steps=40, batch_size=4, gradient_accumulation_steps=1, save_steps=15)
    plan = plan_of(
        settings,
        20,
        evaluation=EvaluationSettings(eval_steps=eval_steps),
        output_dir=tmp_path / "planned",
    )
    monkeypatch.setattr(corpus, "encoding_speed", lambda *_: (2.0, None))

    @contextmanager
    def as_in_shards(*_: Any) -> Iterator[None]:
        """Under FSDP2 the optimizer ends with the training, and a plan left its states out of the disk."""
        try:
            yield
        finally:
            trainer.optimizer = None

    monkeypatch.setattr(trainer.sharded, "in_training", as_in_shards)
    text = plan.measure(trainer, ["sort a list", "open a file"], searched=12, first_seconds=3, mines=True)
    assert trainer.state.global_step == WARM + TIMED
    assert "40, or 8.0 passes over the rows" in text
    assert re.search(r"seconds per step +[\d.e-]+, the median of 6", text)
    # Evaluations on dev at steps 15, 30 and 40, and one at the end; 2 documents and 20 rows to mine from; and
    # the first measure.
    assert f"{(4 * 12 + 2 + 20) / 2 + 3:.1f} s to encode texts for evaluations" in text
    assert re.search(r"largest batch +about [\d,]+ rows", text)
    assert f"are free at {tmp_path}" in text
    assert not list(tmp_path.rglob("checkpoint-*"))
    told = re.search(r"2 times ([\d.]+) kB for checkpoints", text)
    assert told is not None
    whole = make_trainer(fresh(), tmp_path / "whole")
    whole.train()
    tensors = ("model.safetensors", "optimizer.pt", "run_state.safetensors")
    files = (path for path in (tmp_path / "whole" / "checkpoint-6").rglob("*") if path.name in tensors)
    # The headers are an eighth of the files of so small a model, and the plan does not count them.
    assert float(told[1]) * 1000 == pytest.approx(sum(path.stat().st_size for path in files), rel=0.15)


@pytest.mark.parametrize(
    ("train", "best_measure", "kept"),
    [
        ({"steps": 40}, None, 2),
        ({"steps": 40, "save_total_limit": None}, None, 4),
        ({"steps": 40, "save_total_limit": None}, "nDCG@10", 5),  # at each evaluation
        ({"steps": 40}, "nDCG@10", 3),  # the newest two and the best
        ({"epochs": 4, "save_total_limit": None}, None, 4),  # 40 steps too
    ],
)
def test_the_disk_holds_what_the_run_keeps(
    train: dict[str, Any],
    best_measure: str | None,
    kept: int,
    make_trainer: Callable[..., Any],
    fresh: Callable[[], Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A disk that is full ends the run."""
    settings = TrainingSettings(batch_size=4, gradient_accumulation_steps=1, **train)
    evaluation = EvaluationSettings(eval_steps=8, best_measure=best_measure)
    plan = plan_of(settings, 40, evaluation=evaluation, output_dir=tmp_path)
    for name, number in (("WARM", 0), ("TIMED", 1)):  # one step shows the bytes of a checkpoint
        monkeypatch.setattr(f"lexforge.training.plan.{name}", number)
    monkeypatch.setattr(corpus, "encoding_speed", lambda *_: (2.0, None))
    trainer = make_trainer(fresh(), tmp_path / "planned", arguments={"save_steps": NEVER})
    told = re.search(
        r"disk .*?: (\d+) times [\d.]+ kB for checkpoints", plan.measure(trainer, ["a"], searched=1)
    )
    assert told is not None
    assert int(told[1]) == kept


def test_a_typo_is_told_by_the_plan() -> None:
    """Else the run that was planned would be refused."""
    cfg = RecipeSettings(plan=True, train=TrainingSettings(report_to=("wandbb",)))
    with pytest.raises(ValueError, match="received 'wandbb'"):
        begin_run(cfg, lambda given: given, "SparseEncoder")


def test_its_folder_is_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also where the recipe ends with an error."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    plan = plan_of(TrainingSettings(), 5)
    assert len(list(tmp_path.iterdir())) == 1
    del plan
    gc.collect()
    assert not list(tmp_path.iterdir())

"""A run survives what happens to it: signals, full disks, planted files, a loss with a state of its own."""

from __future__ import annotations

import json
import os
import pickle
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from sentence_transformers import SparseEncoder
from sentence_transformers.base.sampler import DefaultBatchSampler
from sentence_transformers.base.trainer import BaseTrainer
from transformers import Trainer, TrainerCallback

from lexforge.common.numbers import byte_size
from lexforge.runs import DamagedCheckpointError, DiskFullError, TrainingInterrupted
from lexforge.runs.checkpoint_folders import by_step, check_seal, last_checkpoint, seal
from lexforge.training import SpladeTrainer

MakeTrainer = Callable[..., SpladeTrainer]
Fresh = Callable[[], SparseEncoder]


class AtStep(TrainerCallback):
    """Does something at the end of one step."""

    def __init__(self, step: int, action: Callable[[], object]) -> None:
        self.step, self.action = step, action

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            self.action()


def test_a_checkpoint_is_written_beside_and_holds_what_callbacks_save(
    tiny_splade: SparseEncoder, tmp_path: Path, make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A callback that saves a file of its own (a queue, mined negatives) saves into the same whole: once,
    under the folder it computes as ever, before the checkpoint has its name. An upload, which runs in the
    background when the folder beside is long gone, gets that name.
    """
    calls = []

    class Saves(TrainerCallback):
        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            calls.append((folder.relative_to(tmp_path).as_posix(), (tmp_path / folder.name).exists()))
            (folder / "own.json").write_text(str(state.global_step))

    trainer = make_trainer(tiny_splade, tmp_path, callbacks=[Saves()])
    pushed: list[str] = []
    trainer.args.push_to_hub = True
    monkeypatch.setattr(BaseTrainer, "_push_from_checkpoint", lambda _, folder: pushed.append(folder))
    monkeypatch.setattr(Trainer, "_finish_current_push", lambda _: None)
    trainer.train()
    assert pushed == [str(tmp_path / f"checkpoint-{step}") for step in (2, 4, 6)]
    assert calls == [(f"unfinished/checkpoint-{step}", False) for step in (2, 4, 6)]
    for step in (2, 4, 6):
        check_seal(tmp_path / f"checkpoint-{step}")
        assert (tmp_path / f"checkpoint-{step}" / "own.json").read_text() == str(step)
    assert trainer.args.output_dir == str(tmp_path)
    checkpoints = [f"checkpoint-{step}" for step in (2, 4, 6)]
    assert sorted(path.name for path in tmp_path.iterdir()) == [*checkpoints, "log.jsonl"]


class Bomb:
    """Unpickling this leaves a file: the harmless form of running what an attacker sent."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


@pytest.fixture(scope="module")
def half_way(fresh: Fresh, tmp_path_factory: pytest.TempPathFactory, make_trainer: MakeTrainer) -> Path:
    """A checkpoint of step 2 of 6."""
    folder = tmp_path_factory.mktemp("half-way")
    trainer = make_trainer(fresh(), folder)
    trainer.add_callback(AtStep(2, lambda: os.kill(os.getpid(), signal.SIGTERM)))
    with pytest.raises(TrainingInterrupted):
        trainer.train()
    return folder / "checkpoint-2"


def test_no_object_of_ours_is_pickled(half_way: Path) -> None:
    """Every file of a checkpoint is text, safetensors or a torch file that the restricted reader accepts."""
    suffixes = {path.suffix for path in half_way.rglob("*") if path.is_file()}
    assert suffixes <= {".json", ".safetensors", ".pt", ".pth", ".txt", ".md"}
    assert json.loads((half_way / "training_args.json").read_text())["learning_rate"] == 1e-3
    for name in ("optimizer.pt", "scheduler.pt"):
        torch.load(half_way / name, weights_only=True)


@pytest.mark.parametrize(
    ("name", "sealed", "torch_file"),
    [
        ("optimizer.pt", False, True),
        ("optimizer.pt", True, True),
        ("optimizer.pt", True, False),
        ("scheduler.pt", True, True),
        ("rng_state.pth", True, True),
        ("scaler.pt", True, True),
    ],
)
def test_a_planted_pickle_is_never_run(
    fresh: Fresh,
    tmp_path: Path,
    make_trainer: MakeTrainer,
    half_way: Path,
    name: str,
    sealed: bool,
    torch_file: bool,
) -> None:
    """A checkpoint from elsewhere must not run code: the seal finds the file, and where the attacker has
    sealed it again, torch's restricted reader refuses it.
    """
    checkpoint, mark = tmp_path / "run" / "checkpoint-2", tmp_path / "executed"
    shutil.copytree(half_way, checkpoint)
    if torch_file:
        torch.save({"state": Bomb(mark)}, checkpoint / name)
    else:
        (checkpoint / name).write_bytes(pickle.dumps(Bomb(mark), protocol=2))
    if sealed:
        seal(checkpoint)
    trainer = make_trainer(fresh(), tmp_path / "run")
    if name == "scaler.pt":  # read only where the run has one
        trainer.accelerator.scaler = torch.amp.GradScaler("cpu", enabled=False)
    with pytest.raises(pickle.UnpicklingError if sealed else DamagedCheckpointError):
        trainer.train(resume_from_checkpoint=str(checkpoint))
    assert not mark.exists()


def test_true_resumes_from_the_newest_whole_checkpoint_or_starts(
    tiny_splade: SparseEncoder, tmp_path: Path, make_trainer: MakeTrainer
) -> None:
    """Killed before the first checkpoint, the same command with --resume must simply train."""
    trainer = make_trainer(tiny_splade, tmp_path)
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == 6
    (tmp_path / "checkpoint-6" / "model.safetensors").write_bytes(b"half")
    taken: list[int] = []
    again = make_trainer(tiny_splade, tmp_path)
    again.add_callback(AtStep(5, lambda: taken.append(again.state.global_step)))
    again.train(resume_from_checkpoint=True)
    assert taken == [5], "continued from checkpoint-4"
    check_seal(tmp_path / "checkpoint-6")


class Short(DefaultBatchSampler):
    """Yields one batch less than its length says."""

    def __iter__(self) -> Iterator[list[int]]:
        yield from list(super().__iter__())[1:]


def short(dataset: Any, **options: Any) -> Short:
    return Short(range(len(dataset)), **options)


def test_a_run_that_ends_early_says_so(
    tiny_splade: SparseEncoder,
    tmp_path: Path,
    make_trainer: MakeTrainer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The Trainer counts epochs by the sampler's length; a sampler that yields less ends the run early."""

    class Early(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            control.should_training_stop = state.global_step == 3

    def train(folder: str, **options: Any) -> list[str]:
        caplog.clear()
        make_trainer(tiny_splade, tmp_path / folder, **options).train()
        return [record.message for record in caplog.records if "steps" in record.message]

    assert train("whole") == []
    assert train("stopped", callbacks=[Early()]) == []
    (message,) = train("short", arguments={"batch_sampler": short})
    assert message.startswith("trained 4 of 6 steps: the batch sampler yielded fewer")


def test_a_signal_outside_training_acts_as_ever(
    tiny_splade: SparseEncoder, tmp_path: Path, make_trainer: MakeTrainer
) -> None:
    """Handlers that stayed behind would make a process that only evaluates deaf to Ctrl-C."""
    before = signal.getsignal(signal.SIGTERM)
    trainer = make_trainer(tiny_splade, tmp_path)
    # after the trainer's own look at the end of step 3: the fourth step is finished first
    trainer.add_callback(AtStep(3, lambda: os.kill(os.getpid(), signal.SIGTERM)))
    with pytest.raises(TrainingInterrupted) as interrupted:
        trainer.train()
    assert signal.getsignal(signal.SIGTERM) is before
    assert (interrupted.value.step, interrupted.value.code) == (4, 143)
    assert interrupted.value.checkpoint == str(tmp_path / "checkpoint-4")
    assert last_checkpoint(tmp_path) == interrupted.value.checkpoint


BEST = {
    "eval_strategy": "steps",
    "eval_steps": 2,
    "load_best_model_at_end": True,
    "save_total_limit": 1,
    "greater_is_better": True,  # so that the first is the best
    "metric_for_best_model": "eval_loss",
}


@pytest.fixture
def make_best(fresh: Fresh, make_trainer: MakeTrainer, training_rows: list[dict[str, str]]) -> MakeTrainer:
    """Folder, arguments -> a trainer that evaluates and loads the best model in the end."""

    def make(folder: Path, **arguments: Any) -> SpladeTrainer:
        rows = Dataset.from_list(training_rows)
        return make_trainer(fresh(), folder, arguments=BEST | arguments, eval_dataset=rows)

    return make


def checkpoints(folder: Path) -> list[str]:
    return [path.name for path in by_step(folder)]


def test_a_signal_keeps_the_newest_checkpoint_beside_the_best(make_best: MakeTrainer, tmp_path: Path) -> None:
    """The Trainer would end by deleting all but the best: what was saved a moment ago, and named as saved."""
    trainer = make_best(tmp_path)
    trainer.add_callback(AtStep(4, lambda: os.kill(os.getpid(), signal.SIGTERM)))
    with pytest.raises(TrainingInterrupted) as interrupted:
        trainer.train()
    step = interrupted.value.step
    assert checkpoints(tmp_path) == ["checkpoint-2", f"checkpoint-{step}"]
    assert interrupted.value.checkpoint == last_checkpoint(tmp_path) == str(tmp_path / f"checkpoint-{step}")
    assert trainer.args.save_total_limit == 1
    saved = json.loads((tmp_path / "checkpoint-2" / "training_args.json").read_text())
    assert saved["save_total_limit"] == 1


def test_a_finished_run_resumed_is_what_training_left(make_best: MakeTrainer, tmp_path: Path) -> None:
    """Killed while it evaluated; the best model is the result, known by its name and kept, and no further
    step is taken.
    """
    whole = make_best(tmp_path)
    whole.train()
    assert checkpoints(tmp_path) == ["checkpoint-2", "checkpoint-6"]
    losses = {line["step"]: line["eval_loss"] for line in whole.state.log_history if "eval_loss" in line}
    best = tmp_path / f"checkpoint-{max(losses, key=losses.__getitem__)}"
    # The Trainer notes the path while the checkpoint still lies beside its place.
    saved = json.loads((best / "trainer_state.json").read_text())
    assert saved["best_model_checkpoint"] == whole.state.best_model_checkpoint == str(best)
    check_seal(best)
    resumed = make_best(tmp_path)
    resumed.add_callback(AtStep(7, lambda: pytest.fail("trained on")))
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == 6
    torch.testing.assert_close(resumed.model.state_dict(), whole.model.state_dict(), rtol=0, atol=0)


def test_the_best_checkpoint_of_a_moved_run_is_found_or_missed_aloud(
    make_best: MakeTrainer, tmp_path: Path
) -> None:
    """The parent logs that it cannot load it, and returns the last model for the best one."""
    whole = make_best(tmp_path / "old")
    whole.train()
    (tmp_path / "old").rename(tmp_path / "new")
    newest = str(tmp_path / "new" / "checkpoint-6")
    resumed = make_best(tmp_path / "new")
    resumed.train(resume_from_checkpoint=newest)
    torch.testing.assert_close(resumed.model.state_dict(), whole.model.state_dict(), rtol=0, atol=0)
    shutil.rmtree(tmp_path / "new" / "checkpoint-2")
    with pytest.raises(FileNotFoundError, match=r"the best checkpoint .*checkpoint-2 is not there"):
        make_best(tmp_path / "new").train(resume_from_checkpoint=newest)


@pytest.mark.parametrize("take", [shutil.move, shutil.copytree])
def test_a_run_that_was_moved_in_its_middle_keeps_its_best_checkpoint(
    make_best: MakeTrainer, tmp_path: Path, take: Callable[[Path, Path], Path]
) -> None:
    """The Trainer forgot it, and it was deleted as the oldest one. A copy kept that of the first run, which
    may be deleted at any time, and deleted its own.
    """
    whole = make_best(tmp_path / "whole")
    whole.train()
    stopped = make_best(tmp_path / "old")
    stopped.add_callback(AtStep(4, lambda: os.kill(os.getpid(), signal.SIGTERM)))
    with pytest.raises(TrainingInterrupted):
        stopped.train()
    take(tmp_path / "old", tmp_path / "new")
    resumed = make_best(tmp_path / "new")
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.best_model_checkpoint == str(tmp_path / "new" / "checkpoint-2")
    assert checkpoints(tmp_path / "new") == ["checkpoint-2", "checkpoint-6"]
    torch.testing.assert_close(resumed.model.state_dict(), whole.model.state_dict(), rtol=0, atol=0)


def test_a_signal_at_the_end_of_an_epoch_keeps_its_evaluation(make_best: MakeTrainer, tmp_path: Path) -> None:
    """The step's checkpoint comes before the epoch's evaluation, which says which model is the best."""
    by_epoch = {"eval_strategy": "epoch", "save_strategy": "epoch", "eval_steps": None}
    whole = make_best(tmp_path / "whole", **by_epoch)
    whole.train()
    stopped = make_best(tmp_path / "stopped", **by_epoch)
    assert whole.state.best_model_checkpoint == str(tmp_path / "whole" / "checkpoint-3")
    in_third = AtStep(2, lambda: os.kill(os.getpid(), signal.SIGTERM))  # seen at the end of the third
    stopped.add_callback(in_third)
    with pytest.raises(TrainingInterrupted):
        stopped.train()
    assert checkpoints(tmp_path / "stopped") == ["checkpoint-3"]
    resumed = make_best(tmp_path / "stopped", **by_epoch)
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.best_model_checkpoint == str(tmp_path / "stopped" / "checkpoint-3")
    torch.testing.assert_close(resumed.model.state_dict(), whole.model.state_dict(), rtol=0, atol=0)


def test_what_an_abandoned_run_left_is_set_aside(
    fresh: Fresh, tmp_path: Path, make_trainer: MakeTrainer, caplog: pytest.LogCaptureFixture
) -> None:
    """Resumed from an earlier step: its later checkpoints would count as newer than those of the new run."""
    make_trainer(fresh(), tmp_path).train()
    limit = {"save_total_limit": 1, "learning_rate": 5e-4}
    trainer = make_trainer(fresh(), tmp_path, arguments=limit)
    trainer.add_callback(AtStep(3, lambda: os.kill(os.getpid(), signal.SIGTERM)))
    with pytest.raises(TrainingInterrupted) as interrupted:
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert checkpoints(tmp_path) == ["checkpoint-4"]
    assert interrupted.value.checkpoint == last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-4")
    assert checkpoints(tmp_path / "abandoned") == ["checkpoint-6"]
    (warning,) = [record.message for record in caplog.records if "earlier step" in record.message]
    assert warning.endswith(f"checkpoint-6: moved to {tmp_path / 'abandoned'}")


def test_a_second_training_writes_its_own_checkpoints(
    tiny_splade: SparseEncoder, tmp_path: Path, make_trainer: MakeTrainer
) -> None:
    """Of the same steps, by the same trainer, over those of the first."""
    trainer = make_trainer(tiny_splade, tmp_path)
    for _ in range(2):
        trainer.train()
        saved = SparseEncoder(str(tmp_path / "checkpoint-6"), device="cpu").state_dict()
        torch.testing.assert_close(saved, trainer.model.state_dict(), rtol=0, atol=0)


def test_other_batches_than_before_are_warned_of(
    fresh: Fresh, tmp_path: Path, make_trainer: MakeTrainer, caplog: pytest.LogCaptureFixture
) -> None:
    """Another seed, another batch or another number of ranks: resumed is not as if uninterrupted."""

    def resume(**arguments: Any) -> list[str]:
        caplog.clear()
        trainer = make_trainer(fresh(), tmp_path, arguments=arguments)
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
        return [record.message for record in caplog.records if "as it began" in record.message]

    make_trainer(fresh(), tmp_path).train()
    assert resume(logging_steps=2) == []
    (message,) = resume(seed=7, per_device_train_batch_size=2)
    assert message.endswith("per_device_train_batch_size was 4 and is 2, seed was 42 and is 7")
    file = tmp_path / "checkpoint-4" / "training_args.json"
    file.write_text(file.read_text().replace('"world_size": 1', '"world_size": 2'))
    seal(tmp_path / "checkpoint-4")
    (message,) = resume()
    assert message.endswith("does not go on as it began: world_size was 2 and is 1")


def test_only_the_rank_that_saves_writes_the_model(
    tiny_splade: SparseEncoder, tmp_path: Path, make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers 5.23 calls `_save` on every rank, and sentence-transformers 6.2 writes on each: two ranks
    wrote into one folder, and one removed what the other was about to remove.
    """
    trainer = make_trainer(tiny_splade, tmp_path)
    monkeypatch.setattr(type(trainer.args), "should_save", False)
    trainer.save_model(str(tmp_path / "model"))
    assert not (tmp_path / "model").exists()


def test_a_checkpoint_that_cannot_fit_is_not_begun(
    tiny_splade: SparseEncoder, tmp_path: Path, make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Known beforehand: weights and two moments of Adam, 12 bytes a parameter (float32), tied ones once."""
    trainer = make_trainer(tiny_splade, tmp_path)
    numbers = sum(parameter.numel() for parameter in tiny_splade.parameters())
    counted: list[int] = []
    trainer.add_callback(AtStep(3, lambda: counted.append(trainer.checkpoint_bytes())))
    usage = shutil.disk_usage(tmp_path)
    fill = AtStep(4, lambda: monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=10_000)))
    trainer.add_callback(fill)
    with pytest.raises(DiskFullError, match=r"B are missing.*checkpoint-2$") as error:
        trainer.train()
    assert f": {byte_size(counted[0] - 10_000)} are missing" in str(error.value)
    steps = 4 * len(list(tiny_splade.parameters()))  # Adam counts them for each
    assert counted == [12 * numbers + steps]
    saved = tmp_path / "checkpoint-2"
    assert counted[0] < sum((saved / name).stat().st_size for name in ("model.safetensors", "optimizer.pt"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-2", "log.jsonl"]


@pytest.mark.parametrize("writer", ["torch", "safetensors", "python"])
def test_a_disk_that_fills_while_a_checkpoint_is_written(
    tiny_splade: SparseEncoder,
    tmp_path: Path,
    make_trainer: MakeTrainer,
    monkeypatch: pytest.MonkeyPatch,
    writer: str,
) -> None:
    """Another process took the room: each writer fails in its own way, the run says what is missing, and the
    checkpoint before is whole.
    """
    import safetensors

    errors = {
        "torch": RuntimeError("PytorchStreamWriter failed writing file data/3: file write failed"),
        "safetensors": safetensors.SafetensorError("I/O error: No space left on device (os error 28)"),
        "python": OSError(28, "No space left on device"),
    }
    trainer = make_trainer(tiny_splade, tmp_path)
    usage = shutil.disk_usage(tmp_path)
    save = trainer._save_optimizer_and_scheduler

    def fail(folder: str) -> None:
        if trainer.state.global_step < 4:
            return save(folder)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=0))
        raise errors[writer]

    trainer._save_optimizer_and_scheduler = fail  # type: ignore[method-assign]
    with pytest.raises(DiskFullError, match=r"B are missing.*checkpoint-2$"):
        trainer.train()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-2", "log.jsonl"]
    check_seal(tmp_path / "checkpoint-2")


def test_another_error_while_saving_stays_itself(
    tiny_splade: SparseEncoder, tmp_path: Path, make_trainer: MakeTrainer
) -> None:
    """A bug in a callback is not to be taken for a full disk; it leaves no half checkpoint either."""

    class Breaks(TrainerCallback):
        def on_save(self, *args: Any, **kwargs: Any) -> None:
            raise KeyError("a bug")

    with pytest.raises(KeyError, match="a bug"):
        make_trainer(tiny_splade, tmp_path, callbacks=[Breaks()]).train()
    assert [path.name for path in tmp_path.iterdir()] == ["log.jsonl"]


TINY_DISK = """
import sys
from pathlib import Path
from lexforge.runs import DiskFullError
from lexforge.runs.checkpoint_folders import check_seal, last_checkpoint
from lexforge.training import SpladeTrainer, TrainingSettings
from lexforge.losses import NeuralSparseLoss
from datasets import Dataset
from sentence_transformers import SparseEncoder
from sentence_transformers.sparse_encoder.modules import SpladePooling, Transformer

run = Path(sys.argv[2])
transformer = Transformer(sys.argv[1], transformer_task="fill-mask", max_seq_length=16)
model = SparseEncoder(modules=[transformer, SpladePooling("max")], device="cpu")
rows = [{"anchor": f"list {i}", "positive": f"the list of {i}"} for i in range(8)]
settings = TrainingSettings(steps=6, batch_size=4, precision="fp32", save_steps=2, logging_steps=9)
loss = NeuralSparseLoss(model, distillation_weight=0.0)
arguments = settings.arguments(run, disable_tqdm=True)
trainer = SpladeTrainer(model, loss, args=arguments, train_dataset=Dataset.from_list(rows))
if sys.argv[3] == "surprise":  # as if the room had been taken after it was counted
    trainer.checkpoint_bytes = lambda: 1
try:
    trainer.train()
except DiskFullError as error:
    print("FULL:", error)
check_seal(last_checkpoint(run))
print("LEFT:", sorted(path.name for path in run.iterdir()))
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("how", ["counted before", "surprise"])
def test_a_disk_of_600_kilobytes(tiny_checkpoint: Path, tmp_path: Path, how: str) -> None:
    """A real full disk (tmpfs): the second checkpoint does not fit, the first is whole."""
    mount, script = tmp_path / "disk", tmp_path / "script.py"
    mount.mkdir()
    script.write_text(TINY_DISK)
    probe = ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", str(mount)]
    if subprocess.run(probe, capture_output=True).returncode:
        pytest.skip("needs the right to mount in a user namespace")
    run = [sys.executable, str(script), str(tiny_checkpoint), f"{mount}/run", how.split()[0]]
    inside = f"mount -t tmpfs -o size=600k tmpfs {mount} && exec {shlex.join(run)}"
    command = ["unshare", "-rm", "sh", "-c", inside]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=800)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "B are missing" in done.stdout
    assert "FULL: a checkpoint of at least" in done.stdout
    assert "LEFT: ['checkpoint-2', 'log.jsonl']" in done.stdout

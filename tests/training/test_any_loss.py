"""Our trainers take what their parents take, and train to the same weights with the same operators."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset, DatasetDict, Features, IterableDataset, Value
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
    SparseEncoder,
    SparseEncoderTrainer,
)
from sentence_transformers.base.training_args import BaseTrainingArguments
from sentence_transformers.sentence_transformer.losses import (
    CachedMultipleNegativesRankingLoss,
    GISTEmbedLoss,
    MatryoshkaLoss,
    MultipleNegativesRankingLoss,
)
from sentence_transformers.sparse_encoder import SparseEncoderTrainingArguments
from sentence_transformers.sparse_encoder.losses import (
    CachedSpladeLoss,
    SparseMultipleNegativesRankingLoss,
    SpladeLoss,
)
from torch import nn
from transformers import trainer as hf_trainer
from transformers.trainer_utils import BestRun, HPSearchBackend

from lexforge.data import DataError
from lexforge.losses import CoSENTLoss, InfoNCELoss, MoCoLoss, NeuralSparseLoss
from lexforge.models import build_inference_free, fuse_splade_head, training_forward
from lexforge.settings import Phase
from lexforge.training import DenseTrainer, SpladeTrainer, TrainingSettings, any_loss, check_full_batch

PHASES = (Phase(0.5, 0.1, 1, 1), Phase(1.0, 0.05, 1, 1))
STEPS = 3


@pytest.fixture
def operators_of_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both trainers drop the same elements, so that ours can be compared with its parent bit for bit."""
    monkeypatch.setattr(training_forward, "FastOperators", nullcontext)


@pytest.fixture
def rows(training_rows: list[dict[str, str]]) -> Dataset:
    """Twelve rows of a query, a positive and a hard negative."""
    return Dataset.from_list(training_rows)


def arguments(folder: Path, settings_class: type[BaseTrainingArguments], **given: Any) -> Any:
    settings = {
        "max_steps": STEPS,
        "per_device_train_batch_size": 4,
        "learning_rate": 1e-3,
        "logging_steps": 1,
    }
    quiet = {"report_to": "none", "disable_tqdm": True, "save_strategy": "no", "use_cpu": True}
    return settings_class(str(folder), **(settings | quiet | given))


def sparse(folder: Path, **given: Any) -> SparseEncoderTrainingArguments:
    return arguments(folder, SparseEncoderTrainingArguments, **given)


def dense(folder: Path, **given: Any) -> SentenceTransformerTrainingArguments:
    return arguments(folder, SentenceTransformerTrainingArguments, **given)


def plain_loss(model: SparseEncoder) -> NeuralSparseLoss:
    return NeuralSparseLoss(model, distillation_weight=0.0, temperature=1.0)


def splade_loss(model: SparseEncoder) -> SpladeLoss:
    ranking = SparseMultipleNegativesRankingLoss(model)
    return SpladeLoss(model, ranking, document_regularizer_weight=1e-3, query_regularizer_weight=1e-3)


def cached_splade_loss(model: SparseEncoder) -> CachedSpladeLoss:
    ranking = SparseMultipleNegativesRankingLoss(model)
    return CachedSpladeLoss(model, ranking, 1e-3, query_regularizer_weight=1e-3, mini_batch_size=2)


def trained(trainer: Any) -> dict[str, torch.Tensor]:
    """The weights after training; the same seed decides the dropout of every trainer."""
    torch.manual_seed(0)
    trainer.train()
    return dict(trainer.model.named_parameters())


def assert_trains_like_the_parent(
    model: Any, make: Callable[[type, Any], Any], ours: type, parent: type
) -> dict[str, torch.Tensor]:
    """Weights of both trainers from copies of one model, compared bit for bit."""
    twin = copy.deepcopy(model)
    found, expected = trained(make(ours, model)), trained(make(parent, twin))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    return found


SPARSE_LOSSES = {
    "SpladeLoss": splade_loss,
    "CachedSpladeLoss": cached_splade_loss,
    "the default": lambda model: None,
    "InfoNCELoss": InfoNCELoss,
    "NeuralSparseLoss": plain_loss,
    "two of them": lambda model: {"first": plain_loss(model), "second": splade_loss(model)},
}


@pytest.mark.usefixtures("operators_of_pytorch")
@pytest.mark.parametrize("name", SPARSE_LOSSES)
def test_any_loss_trains_a_sparse_encoder_as_in_the_parent(
    name: str, tiny_splade: SparseEncoder, tmp_path: Path, rows: Dataset
) -> None:
    """Whoever changes the trainer's name must get the run they had, with the head fused."""
    fuse_splade_head(tiny_splade)
    named = {"first": rows, "second": rows.select_columns(["anchor", "positive"])}

    def make(trainer: type, model: SparseEncoder) -> Any:
        data = copy.deepcopy(named) if name == "two of them" else rows
        return trainer(
            model=model, args=sparse(tmp_path), loss=SPARSE_LOSSES[name](model), train_dataset=data
        )

    assert_trains_like_the_parent(tiny_splade, make, SpladeTrainer, SparseEncoderTrainer)


DENSE_LOSSES: dict[str, Callable[[Any], Any]] = {
    "MultipleNegativesRankingLoss": MultipleNegativesRankingLoss,
    "CachedMultipleNegativesRankingLoss": lambda model: CachedMultipleNegativesRankingLoss(
        model, mini_batch_size=2
    ),
    "GISTEmbedLoss": lambda model: GISTEmbedLoss(model, copy.deepcopy(model)),
    "MatryoshkaLoss of ours": lambda model: MatryoshkaLoss(model, InfoNCELoss(model), [32, 16]),
    "the default": lambda model: None,
}


@pytest.mark.usefixtures("operators_of_pytorch")
@pytest.mark.parametrize("name", DENSE_LOSSES)
def test_any_loss_trains_a_dense_encoder_as_in_the_parent(
    name: str, tiny_dense: SentenceTransformer, tmp_path: Path, rows: Dataset
) -> None:
    """The same promise for dense encoders; what our collator adds must not reach a loss of others."""

    pairs = rows.select_columns(["anchor", "positive"])
    scored = pairs.add_column("score", [place / len(pairs) for place in range(len(pairs))])
    data = scored if name == "the default" else rows  # the default reads scores

    def make(trainer: type, model: SentenceTransformer) -> Any:
        return trainer(model=model, args=dense(tmp_path), loss=DENSE_LOSSES[name](model), train_dataset=data)

    assert_trains_like_the_parent(tiny_dense, make, DenseTrainer, SentenceTransformerTrainer)


@pytest.mark.usefixtures("operators_of_pytorch")
def test_two_losses_of_a_dense_encoder_take_turns(
    tiny_dense: SentenceTransformer, tmp_path: Path, rows: Dataset
) -> None:
    """Each data set goes to its own loss, with its own columns and labels."""
    pairs = rows.select_columns(["anchor", "positive"])
    scored = pairs.add_column("score", [place / len(pairs) for place in range(len(pairs))])

    def make(trainer: type, model: SentenceTransformer) -> Any:
        losses = {"ranked": InfoNCELoss(model), "scored": CoSENTLoss(model)}
        data = DatasetDict({"ranked": pairs, "scored": scored})
        return trainer(model=model, args=dense(tmp_path), loss=losses, train_dataset=data)

    assert_trains_like_the_parent(tiny_dense, make, DenseTrainer, SentenceTransformerTrainer)


@pytest.mark.usefixtures("operators_of_pytorch")
@pytest.mark.parametrize(
    ("columns", "stream"),
    [(["query", "answer", "hard"], True), (["positive", "anchor", "negative_1"], False)],
    ids=["other names, as a stream", "another order"],
)
def test_columns_count_by_position_as_in_the_parent(
    columns: list[str], stream: bool, tiny_splade: SparseEncoder, tmp_path: Path, rows: Dataset
) -> None:
    """Data that trained in the parent trains here, whatever its columns are called."""
    fuse_splade_head(tiny_splade)
    named = rows.rename_columns(dict(zip(rows.column_names, ("a", "b", "c"), strict=True)))
    named = named.rename_columns(dict(zip(("a", "b", "c"), columns, strict=True)))
    data = named.to_iterable_dataset() if stream else named

    def make(trainer: type, model: SparseEncoder) -> Any:
        return trainer(model=model, args=sparse(tmp_path), loss=plain_loss(model), train_dataset=data)

    assert_trains_like_the_parent(tiny_splade, make, SpladeTrainer, SparseEncoderTrainer)


def test_rows_of_a_transform_train_as_the_rows_that_it_makes(
    tiny_splade: SparseEncoder, tmp_path: Path, rows: Dataset
) -> None:
    """A transform may read several columns and give others; what trains and is checked is its output."""
    fuse_splade_head(tiny_splade)
    twin = copy.deepcopy(tiny_splade)
    source = rows.rename_columns({"anchor": "title", "positive": "body"})

    def joined(batch: dict[str, list[str]]) -> dict[str, list[str]]:
        pairs = zip(batch["title"], batch["body"], strict=True)
        return {"question": batch["title"], "answer": [f"{title} {body}" for title, body in pairs]}

    # A wanted number of terms has the trainer read texts of the rows once more.
    settings = {"args": sparse(tmp_path), "document_terms": 8}
    lazy = source.with_transform(joined)
    found = trained(SpladeTrainer(tiny_splade, plain_loss(tiny_splade), train_dataset=lazy, **settings))
    eager = Dataset.from_dict(joined(source[:]))
    expected = trained(SpladeTrainer(twin, plain_loss(twin), train_dataset=eager, **settings))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


EXTRA = {
    "numbers": {"id": 1, "rank": 2.0, "vector": [0.5, 1.0], "kept": True},
    "ids": {"doc_id": "d7", "id": "q1"},
    "ids and a label": {"label": [1.0, 0.0], "query_idx": 3},
    "a second label": {"label": [1.0, 0.0], "score": 0.5},
}


@pytest.mark.parametrize(
    ("extra", "stream"), [*((extra, False) for extra in EXTRA.values()), (EXTRA["ids and a label"], True)]
)
def test_extra_columns_are_dropped_with_a_line(
    extra: dict[str, Any],
    stream: bool,
    tiny_splade: SparseEncoder,
    tmp_path: Path,
    rows: Dataset,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Data sets carry ids and notes; the run is that without them, and the log names what was left out."""
    more = Dataset.from_list([row | extra for row in rows])
    twin = copy.deepcopy(tiny_splade)
    data = more.to_iterable_dataset() if stream else more
    with caplog.at_level(logging.WARNING):
        found = trained(
            SpladeTrainer(tiny_splade, plain_loss(tiny_splade), args=sparse(tmp_path), train_dataset=data)
        )
    dropped = [name for name in extra if name != "label"]
    lines = [record.getMessage() for record in caplog.records if "are dropped" in record.getMessage()]
    assert lines == [f"train_dataset: the columns {dropped} are dropped, because no loss reads them"]
    bare = rows.to_iterable_dataset() if stream else rows
    expected = trained(SpladeTrainer(twin, plain_loss(twin), args=sparse(tmp_path), train_dataset=bare))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_a_teacher_is_asked_by_position(tiny_splade: SparseEncoder, tmp_path: Path, rows: Dataset) -> None:
    """A teacher has one prompt for queries and one for documents; the first column holds the queries."""
    asked: set[tuple[str, str]] = set()

    class Teacher:
        similarity = "cosine"

        def lookup(self, texts: list[str], kind: str) -> Any:
            asked.update((text, kind) for text in texts)
            return torch.tensor([[len(text), ord(text[0]), ord(text[-1])] for text in texts]).float().numpy()

    named = rows.rename_columns({"anchor": "question", "positive": "answer", "negative_1": "other"})
    loss = NeuralSparseLoss(tiny_splade)
    SpladeTrainer(tiny_splade, loss, teacher=Teacher(), args=sparse(tmp_path), train_dataset=named).train()
    assert asked == {
        *((text, "query") for text in named["question"]),
        *((text, "document") for column in ("answer", "other") for text in named[column]),
    }


def test_what_a_loss_measures_is_a_mean_over_its_own_batches(
    tiny_splade: SparseEncoder, tmp_path: Path, rows: Dataset
) -> None:
    """With two losses in turn, a mean over all batches would show half of the active dimensions."""
    losses = {"first": plain_loss(tiny_splade), "second": splade_loss(tiny_splade)}
    seen: list[float] = []
    compute = losses["first"].compute_loss

    def spy(*args: Any) -> Any:
        result = compute(*args)
        seen.append(float(losses["first"].metrics["terms/document"]))
        return result

    losses["first"].compute_loss = spy  # type: ignore[method-assign]
    trainer = SpladeTrainer(
        tiny_splade,
        losses,
        args=sparse(tmp_path, max_steps=4, logging_steps=4),
        train_dataset={"first": rows, "second": rows},
    )
    trainer.train()
    line = next(line for line in trainer.state.log_history if "loss" in line)
    assert 0 < len(seen) < 4
    assert line["terms/document"] == pytest.approx(sum(seen) / len(seen), rel=1e-3)


def test_an_evaluation_logs_the_parts_of_its_own_batches(
    tiny_splade: SparseEncoder, tmp_path: Path, rows: Dataset
) -> None:
    """Each data set of several has its parts under its name. They were added to the next evaluation's."""
    trainer = SpladeTrainer(
        tiny_splade,
        plain_loss(tiny_splade),
        args=sparse(tmp_path),
        train_dataset=rows,
        eval_dataset={"a": rows, "b": rows.select(range(4))},
    )

    def parts(prefix: str, *given: Dataset) -> list[dict[str, float]]:
        trainer.state.log_history.clear()
        trainer.evaluate(*given, metric_key_prefix=prefix)
        found = [dict(line) for line in trainer.state.log_history]
        measured = ("_loss/", "_share/", "_terms/")
        return [{key: line[key] for key in line if any(part in key for part in measured)} for line in found]

    (first,) = parts("eval", rows)
    of_a, of_b = parts("eval")
    assert of_a == {name.replace("eval_", "eval_a_"): value for name, value in first.items()}
    assert of_a.keys() == {name.replace("_b_", "_a_") for name in of_b}
    assert of_a["eval_a_loss/infonce"] != of_b["eval_b_loss/infonce"]
    (tested,) = parts("test", rows.select(range(4)))
    assert list(tested.values()) == list(of_b.values())
    trainer.predict(rows.select(range(4)))  # logs nothing
    assert parts("eval", rows) == [first]


def test_a_line_of_the_log_without_a_batch_in_parts_has_none(
    tiny_splade: SparseEncoder, tmp_path: Path, rows: Dataset
) -> None:
    """Losses with parts and without take turns; the parts of no batch were 0 / 0."""
    losses = {"parts": plain_loss(tiny_splade), "none": CoSENTLoss(tiny_splade)}
    scored = rows.select_columns(["anchor", "positive"]).add_column("label", [row / 12 for row in range(12)])
    trainer = SpladeTrainer(
        tiny_splade,
        losses,
        args=sparse(tmp_path, max_steps=6),
        train_dataset={"parts": rows, "none": scored},
    )
    trainer.train()
    lines = [line for line in trainer.state.log_history if "loss" in line]
    assert 0 < sum("loss/infonce" in line for line in lines) < len(lines)
    assert not any(math.isnan(value) for line in lines for value in line.values())


def moco(model: nn.Module) -> MoCoLoss:
    model.similarity_fn_name = "cosine"
    return MoCoLoss(model, queue_size=16, momentum=0.5)


def test_a_hyperparameter_search_tries_its_settings(
    fresh: Callable[[], SparseEncoder], tmp_path: Path, rows: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two trials of a search, by a backend that does what the one for optuna does."""
    rates = [1e-5, 1e-2]

    class Backend:
        def ensure_available(self) -> None: ...

        def run(self, trainer: Any, n_trials: int, direction: str) -> BestRun:
            found = []
            for number in range(n_trials):
                trial = SimpleNamespace(number=number, params={"learning_rate": rates[number]})
                trainer.objective = None
                trainer.train(trial=trial)
                found.append(trainer.evaluate()["eval_loss"])
            best = min(range(n_trials), key=found.__getitem__)
            return BestRun(str(best), found[best], {"learning_rate": rates[best], "all": found})

    monkeypatch.setitem(hf_trainer.ALL_HYPERPARAMETER_SEARCH_BACKENDS, HPSearchBackend.OPTUNA, Backend)
    monkeypatch.setattr("transformers.integrations.hp_params", lambda trial: trial.params)
    trainer = SpladeTrainer(
        loss=plain_loss(fresh()),
        model_init=lambda trial: fresh(),
        args=sparse(tmp_path),
        train_dataset=rows,
        eval_dataset=rows,
        phases=PHASES,
    )
    best = trainer.hyperparameter_search(
        hp_space=lambda trial: trial.params, n_trials=2, backend="optuna", direction="minimize"
    )
    assert len(set(best.hyperparameters["all"])) == 2
    for rate, measured in zip(rates, best.hyperparameters["all"], strict=True):
        alone = SpladeTrainer(
            loss=plain_loss(fresh()),
            model_init=lambda: fresh(),
            args=sparse(tmp_path, learning_rate=rate),
            train_dataset=rows,
            eval_dataset=rows,
            phases=PHASES,
        )
        alone.train()
        assert alone.evaluate()["eval_loss"] == pytest.approx(measured, rel=1e-6)


REFUSED: dict[str, tuple[Callable[[SparseEncoder], dict[str, Any]], type[Exception], str]] = {
    "phases with a loss of others": (
        lambda model: {"loss": splade_loss(model), "phases": PHASES},
        ValueError,
        "phases, ramp_fraction, .* need a single NeuralSparseLoss, .*; received SpladeLoss",
    ),
    "phases with two losses": (
        lambda model: {"loss": {"a": plain_loss(model), "b": plain_loss(model)}, "phases": PHASES},
        ValueError,
        "phases, ramp_fraction, .* need a single NeuralSparseLoss, .*NeuralSparseLoss, NeuralSparseLoss",
    ),
    "a teacher with a loss of others": (
        lambda model: {"loss": InfoNCELoss(model), "teacher": object()},
        ValueError,
        "a teacher needs a NeuralSparseLoss for every data set, .*; received InfoNCELoss",
    ),
    "a teacher with the default": (
        lambda model: {"teacher": object()},
        ValueError,
        "a teacher needs a NeuralSparseLoss for every data set, .*; received the default of the parent",
    ),
    "arguments in the place of the loss": (
        lambda model: {"loss": SparseEncoderTrainingArguments("unused")},
        TypeError,
        "received SparseEncoderTrainingArguments: pass the arguments of training as args=",
    ),
    "a loss with a state and model_init": (
        lambda model: {"loss": moco(model), "model_init": lambda: model},
        ValueError,
        "MoCoLoss has a state, which model_init would hand from one model to the next",
    ),
    "a function that builds a loss": (
        lambda model: {"loss": moco},
        TypeError,
        "loss must be a loss that was built with its model, .*; received function",
    ),
    "a blank question": (
        lambda model: {"train_dataset": Dataset.from_dict({"question": ["a", " "], "answer": ["b", "c"]})},
        DataError,
        "column 'question', row 1: the text is blank",
    ),
    "a stream of one column": (
        lambda model: {"train_dataset": Dataset.from_dict({"question": ["a"]}).to_iterable_dataset()},
        DataError,
        r"two or more text columns, .*received \['question'\]",
    ),
}


@pytest.mark.parametrize(("make", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_done_is_said_at_once(
    make: Callable[[SparseEncoder], dict[str, Any]],
    error: type[Exception],
    message: str,
    tiny_splade: SparseEncoder,
    tmp_path: Path,
    rows: Dataset,
) -> None:
    """One error, before training, that names what was given and what is allowed."""
    given = {"loss": None, "train_dataset": rows, **make(tiny_splade)}
    if error is DataError:
        given["loss"] = plain_loss(tiny_splade)
    with pytest.raises(error, match=message):
        SpladeTrainer(tiny_splade, args=sparse(tmp_path), **given)


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_loss_of_another_model_is_refused(tiny_dense, rows: Dataset, tmp_path: Path, wrapped: bool) -> None:
    """The trainer would save, log and evaluate a model that no step changes."""
    loss: nn.Module = InfoNCELoss(copy.deepcopy(tiny_dense))
    if wrapped:
        loss = MatryoshkaLoss(tiny_dense, loss, [8, 4])
    args = SentenceTransformerTrainingArguments(str(tmp_path), report_to=[])
    with pytest.raises(ValueError, match=r"Loss was built with another SentenceTransformer than the one"):
        DenseTrainer(tiny_dense, loss, args=args, train_dataset=rows)


def test_several_ranks_refuse_losses_that_would_wait_for_each_other(
    tiny_dense: SentenceTransformer, tmp_path: Path, rows: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ranks take batches of different data sets in one step; losses that gather would hang."""
    monkeypatch.setattr(any_loss, "world_size", lambda: 2)
    pairs = rows.select_columns(["anchor", "positive"])
    losses = {"a": InfoNCELoss(tiny_dense), "b": InfoNCELoss(tiny_dense)}
    for loss, second in ((losses, rows), (losses["a"], pairs)):
        with pytest.raises(
            ValueError, match="on several ranks InfoNCELoss needs one loss and the same number"
        ):
            DenseTrainer(tiny_dense, loss, args=dense(tmp_path), train_dataset={"a": rows, "b": second})
    DenseTrainer(tiny_dense, losses["a"], args=dense(tmp_path), train_dataset={"a": rows, "b": rows})
    stock = MultipleNegativesRankingLoss(tiny_dense)
    DenseTrainer(tiny_dense, stock, args=dense(tmp_path), train_dataset={"a": rows, "b": pairs})


def test_several_ranks_refuse_a_stream_that_accelerate_would_join(
    tiny_dense: SentenceTransformer, tmp_path: Path, rows: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first step ended in "Can only concatenate tensors but got <class 'str'>"."""
    monkeypatch.setattr(any_loss, "world_size", lambda: 2)
    given = {"loss": InfoNCELoss(tiny_dense), "train_dataset": rows.to_iterable_dataset()}
    with pytest.raises(ValueError, match=r'an IterableDataset needs .*"dispatch_batches": False'):
        DenseTrainer(tiny_dense, args=dense(tmp_path), **given)
    own = {"dispatch_batches": False}
    DenseTrainer(tiny_dense, args=dense(tmp_path, accelerator_config=own), **given)


def test_poolers_are_searched_for_unless_columns_take_routes(
    tiny_dense: SentenceTransformer, tiny_splade: SparseEncoder, tmp_path: Path, rows: Dataset
) -> None:
    """DistributedDataParallel needs the search for the first, and fails by it with the second."""

    def decided(trainer: Any) -> bool | None:
        return trainer.args.ddp_find_unused_parameters

    for given, expected in (({}, True), ({"ddp_find_unused_parameters": False}, False)):
        args = dense(tmp_path, **given)
        assert decided(DenseTrainer(tiny_dense, args=args, train_dataset=rows)) is expected
    routed = build_inference_free(tiny_splade, torch.ones(len(tiny_splade.tokenizer)).numpy())
    args = sparse(tmp_path, router_mapping=dict.fromkeys(rows.column_names, "document"))
    assert decided(SpladeTrainer(routed, plain_loss(routed), args=args, train_dataset=rows)) is False
    # The stock trainer of sparse encoders gets it from the settings.
    settings = TrainingSettings(precision="fp32")
    assert settings.arguments(tmp_path).ddp_find_unused_parameters is False
    stock = settings.arguments(tmp_path, SentenceTransformerTrainingArguments)
    assert stock.ddp_find_unused_parameters is None


def no_rows() -> Iterator[dict[str, str]]:
    yield from ()


@pytest.mark.parametrize("length", [{"steps": 1}, {"epochs": 1.0}])
def test_a_training_of_one_step_has_no_warm_up(
    tiny_dense: SentenceTransformer, tmp_path: Path, rows: Dataset, length: dict[str, Any]
) -> None:
    """Its only step would have the rate 0, and would train nothing without a word."""
    settings = TrainingSettings(batch_size=8, learning_rate=1e-3, precision="fp32", **length)
    before = {name: value.clone() for name, value in tiny_dense.state_dict().items()}
    args = settings.arguments(tmp_path, SentenceTransformerTrainingArguments, save_strategy="no")
    trainer = DenseTrainer(tiny_dense, InfoNCELoss(tiny_dense), args=args, train_dataset=rows)
    trainer.train()
    assert trainer.state.global_step == 1
    assert any(not torch.equal(value, before[name]) for name, value in tiny_dense.state_dict().items())


def test_training_without_a_step_is_refused(
    tiny_dense: SentenceTransformer, tmp_path: Path, rows: Dataset
) -> None:
    """The parent ends without an error, and a caller would evaluate the first model as the trained one."""
    loss = InfoNCELoss(tiny_dense)

    def trainer(data: Any, **given: Any) -> DenseTrainer:
        return DenseTrainer(tiny_dense, loss, args=dense(tmp_path, **given), train_dataset=data)

    large = {"per_device_train_batch_size": 64, "dataloader_drop_last": True}
    columns = Features({"anchor": Value("string"), "positive": Value("string")})
    stream = IterableDataset.from_generator(no_rows, features=columns)
    for data in (rows, {"a": rows, "b": rows}):
        with pytest.raises(ValueError, match=r"no step was taken: .* received 3 and .*, and batches of 64"):
            trainer(data, **large).train()
    with pytest.raises(ValueError, match=r"no step was taken: .* received -1 and 0, and batches of 4"):
        trainer(rows, max_steps=-1, num_train_epochs=0).train()
    with pytest.raises(ValueError, match="Batch does not contain any data"):
        trainer(stream).train()


def test_an_evaluation_of_several_losses_needs_names(
    tiny_dense: SentenceTransformer, tmp_path: Path, rows: Dataset
) -> None:
    """Without a name nobody knows by which loss to evaluate."""
    losses = {"a": InfoNCELoss(tiny_dense), "b": InfoNCELoss(tiny_dense)}
    trainer = DenseTrainer(tiny_dense, losses, args=dense(tmp_path), train_dataset={"a": rows, "b": rows})
    assert trainer.evaluate(DatasetDict({"a": rows}))["eval_a_loss"] > 0
    with pytest.raises(ValueError, match=r"one loss for each of the data sets \['a', 'b'\]"):
        trainer.evaluate(rows)


def test_data_for_less_than_one_batch_is_refused() -> None:
    """The Trainer takes no step then, and the run would report its first model as the trained one."""
    settings = TrainingSettings(batch_size=4)
    check_full_batch(8, settings, processes=2)
    with pytest.raises(
        ValueError, match=r"has 7 rows, and one batch needs 8 \(batch size 4, number of processes 2\)"
    ):
        check_full_batch(7, settings, processes=2)

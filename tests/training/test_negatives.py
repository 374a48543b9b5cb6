"""Negatives that move: what is mined, when, that every copy of the data set sees it, and an exact resume."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from sentence_transformers import SparseEncoder
from sentence_transformers.base.training_args import BatchSamplers
from torch.utils.data import DataLoader

from lexforge.data import NegativeRule, RetrievalData, training_rows, validate_columns
from lexforge.losses import NeuralSparseLoss
from lexforge.training import MovingNegatives, SpladeTrainer, TrainingSettings

RANKS_SCRIPT = Path(__file__).parents[1] / "distributed" / "moving_negatives_ranks.py"
WORDS = "list array search index query document vector sparse token model train file graph tree".split()
STEPS = 9  # three an epoch
# whatever is mined: before version 6.2 the sampler without duplicates finds fewer
THREE_BATCHES = {"batch_sampler": BatchSamplers.BATCH_SAMPLER}


def retrieval_data(documents: int = 40) -> RetrievalData:
    """Documents of three words; twelve queries with a positive each."""
    rng = np.random.default_rng(0)
    corpus = {f"d{i}": " ".join(rng.choice(WORDS, 3)) + f" {WORDS[i % 14]}" for i in range(documents)}
    texts = {f"q{i}": f"{WORDS[i]} {WORDS[i + 1]}" for i in range(12)}
    return RetrievalData("words", corpus, texts, {"train": {f"q{i}": {f"d{i}": 1} for i in range(12)}})


def make_trainer(
    model: SparseEncoder, folder: Path, negatives: MovingNegatives, **arguments: Any
) -> SpladeTrainer:
    """Plain InfoNCE and FLOPS; a high learning rate, so that rankings change."""
    settings = TrainingSettings(
        save_total_limit=None,
        steps=STEPS,
        batch_size=4,
        gradient_accumulation_steps=1,
        learning_rate=1e-2,
        precision="fp32",
        save_steps=2,
        logging_steps=1,
    )
    loss = NeuralSparseLoss(model, infonce_weight=1.0, distillation_weight=0.0)
    return SpladeTrainer(
        model,
        loss,
        args=settings.arguments(folder, disable_tqdm=True, **arguments),
        train_dataset=negatives.dataset,
        callbacks=[negatives],
    )


def fresh(checkpoint: Path) -> SparseEncoder:
    from sentence_transformers.sparse_encoder.modules import SpladePooling, Transformer

    transformer = Transformer(str(checkpoint), transformer_task="fill-mask", max_seq_length=32)
    return SparseEncoder(modules=[transformer, SpladePooling("max")], device="cpu")


def watch(negatives: MovingNegatives) -> list[tuple[int, list[str]]]:
    """Record (step, texts of the first negative) after each beginning of an epoch."""
    seen: list[tuple[int, list[str]]] = []
    begin = negatives.on_epoch_begin

    def recorded(args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        begin(args, state, control, **kwargs)
        seen.append((state.global_step, list(negatives.dataset["negative_1"])))

    negatives.on_epoch_begin = recorded  # type: ignore[method-assign]
    return seen


def test_the_data_set_keeps_the_contract_and_its_copies_see_every_change() -> None:
    """The sampler and the trainer copy the data set: a copy of its own would train on old negatives."""
    negatives = MovingNegatives(retrieval_data(), NegativeRule(per_row=2))
    dataset = negatives.dataset
    assert validate_columns(dataset) == ("anchor", "positive", "negative_1", "negative_2")
    copies = [
        dataset,
        dataset.remove_columns("negative_2"),
        dataset.shuffle(seed=1),
        dataset.select(range(4)),
    ]
    negatives._texts.positions = np.full((12, 2), 5, np.int32)
    expected = retrieval_data().corpus["d5"]
    for copy in copies:
        assert set(copy["negative_1"]) == {expected}
        assert copy[3]["negative_1"] == expected
        assert copy[2:4]["negative_1"] == [expected] * 2
    loaded = DataLoader(dataset, batch_size=12, num_workers=1, collate_fn=list)
    assert {row["negative_1"] for row in next(iter(loaded))} == {expected}
    negatives._texts.positions = np.full((12, 2), 6, np.int32)
    assert {row["negative_1"] for row in next(iter(loaded))} == {retrieval_data().corpus["d6"]}


def test_the_best_ranked_by_the_model_of_the_moment_are_taken_every_n_epochs(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """Beside a naive product of dense vectors at each beginning of an epoch; epoch 1 keeps those of 0."""
    data = retrieval_data()
    negatives = MovingNegatives(data, NegativeRule(choice="top", last_rank=2), every_epochs=2)
    expected: list[list[str]] = []
    begin = negatives.on_epoch_begin

    def with_naive_search(args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        encode = kwargs["model"].encode
        documents = encode(list(data.corpus.values()), convert_to_sparse_tensor=False)
        scores = encode(list(data.queries.values()), convert_to_sparse_tensor=False) @ documents.T
        scores[range(12), range(12)] = -1  # the positive of query i is document i
        expected.append([list(data.corpus.values())[place] for place in scores.argmax(1).tolist()])
        begin(args, state, control, **kwargs)

    negatives.on_epoch_begin = with_naive_search  # type: ignore[method-assign]
    seen = watch(negatives)
    # several queries have the same best document: no batch without a text twice could be made of them
    make_trainer(fresh(tiny_checkpoint), tmp_path, negatives, save_strategy="no", **THREE_BATCHES).train()
    assert [step for step, _ in seen] == [0, 3, 6]
    assert seen[0][1] == expected[0]
    assert seen[1][1] == seen[0][1]
    assert seen[2][1] == expected[2]
    assert expected[0] != expected[1]
    assert expected[0] != expected[2]


@pytest.fixture(scope="module")
def whole_run(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A run that never stopped: its folder, its weights, and its negatives in each epoch."""
    folder = tmp_path_factory.mktemp("whole")
    negatives = MovingNegatives(retrieval_data(), NegativeRule(per_row=2, last_rank=20))
    seen = watch(negatives)
    trainer = make_trainer(fresh(tiny_checkpoint), folder, negatives, **THREE_BATCHES)
    trainer.train()
    return {"folder": folder, "seen": seen, "weights": trainer.model.state_dict()}


@pytest.mark.parametrize("checkpoint", [4, 6], ids=["inside an epoch", "between epochs"])
def test_a_resumed_run_goes_on_with_the_same_negatives(
    checkpoint: int, whole_run: dict[str, Any], tiny_checkpoint: Path
) -> None:
    """Bit for bit: negatives mined by the weights of an earlier step cannot be mined again at this one."""
    assert [step for step, _ in whole_run["seen"]] == [0, 3, 6]
    epochs = [texts for _, texts in whole_run["seen"]]
    assert len({tuple(texts) for texts in epochs}) == 3  # every mining changed something
    negatives = MovingNegatives(retrieval_data(), NegativeRule(per_row=2, last_rank=20))
    seen = watch(negatives)
    resumed = make_trainer(fresh(tiny_checkpoint), whole_run["folder"], negatives, **THREE_BATCHES)
    resumed.train(resume_from_checkpoint=str(whole_run["folder"] / f"checkpoint-{checkpoint}"))
    assert [texts for _, texts in seen] == epochs[checkpoint // 3 :]
    for name, value in whole_run["weights"].items():
        torch.testing.assert_close(resumed.model.state_dict()[name], value, rtol=0, atol=0, msg=name)


def test_a_dense_model_mines_with_its_own_index(tiny_dense) -> None:
    """The callback serves any trainer of sentence-transformers."""
    pytest.importorskip("faiss", reason="faiss-cpu has no wheel for this machine")
    data = retrieval_data()
    negatives = MovingNegatives(data, NegativeRule(choice="top", last_rank=3))
    positions = negatives._mine_on_all_ranks(tiny_dense, 0)
    documents = tiny_dense.encode(list(data.corpus.values()), normalize_embeddings=True)
    queries = tiny_dense.encode(list(data.queries.values()), normalize_embeddings=True)
    scores = queries @ documents.T
    scores[range(12), range(12)] = -2
    assert positions[:, 0].tolist() == scores.argmax(1).tolist()


def test_a_teacher_filters_what_is_mined(tiny_splade: SparseEncoder) -> None:
    """A teacher that takes every document for an answer leaves random ones; one that takes none, the best."""

    class Constant:
        def __init__(self, value: float) -> None:
            self.value = value

        def lookup(self, texts: Any, kind: str) -> np.ndarray:
            """The query and its positive agree; every other document scores `value` with the query."""
            if kind == "query":
                positive = retrieval_data().corpus
                self.positive = {f"{WORDS[i]} {WORDS[i + 1]}": positive[f"d{i}"] for i in range(12)}[texts[0]]
                return np.ones((1, 1))
            return np.array([[1.0 if text == self.positive else self.value] for text in texts])

    rule = NegativeRule(choice="top", last_rank=3, teacher_margin=0.1)
    plain = MovingNegatives(retrieval_data(), NegativeRule(choice="top", last_rank=3))
    best = plain._mine_on_all_ranks(tiny_splade, 0)
    for value, same in ((0.5, True), (0.95, False)):
        filtered = MovingNegatives(retrieval_data(), rule, teacher=Constant(value))
        assert np.array_equal(filtered._mine_on_all_ranks(tiny_splade, 0), best) == same


def test_two_ranks_train_on_the_same_negatives(
    run_script: Callable[..., None], tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """Ranks that mined differently would draw different batches of the same rows."""
    run_script(RANKS_SCRIPT, tiny_checkpoint, tmp_path, ranks=2)
    ranks = [torch.load(tmp_path / f"rank{rank}.pt") for rank in range(2)]
    assert ranks[0] == ranks[1]
    assert len(ranks[0]["mined"]) == 3
    negatives = MovingNegatives(retrieval_data(), NegativeRule(per_row=2, last_rank=20))
    alone = negatives._mine_on_all_ranks(fresh(tiny_checkpoint), 0)
    assert ranks[0]["mined"][0] == alone.tolist()
    assert ranks[0]["error"] == "rank 0 failed"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every_epochs": 0}, "every_epochs must be at least 1; received 0"),
        ({"block_queries": 0}, "block_queries must be at least 1"),
        ({"rule": NegativeRule(shortage="drop")}, "shortage='random'"),
        (
            {"rule": NegativeRule(teacher_margin=0.1)},
            r"needed .* teacher_margin=0\.1 and teacher=None",
        ),
        ({"teacher": {}}, r"for no other rule; received teacher_margin=None and teacher=\{\}"),
        ({"rule": NegativeRule(per_row=40)}, "received per_row=40"),
        ({"split": "dev"}, "no split 'dev'"),
    ],
)
def test_bad_settings_are_refused(options: dict[str, Any], message: str) -> None:
    """Before anything is encoded."""
    with pytest.raises(ValueError, match=message):
        MovingNegatives(retrieval_data(), **{"rule": NegativeRule(), **options})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_sampler": BatchSamplers.NO_DUPLICATES_HASHED}, "does not see them change"),
        (
            {"dataloader_num_workers": 1, "dataloader_persistent_workers": True},
            "persistent_workers=True keeps",
        ),
        ({"restore_callback_states_from_checkpoint": True}, "set it to False: the callback restores itself"),
    ],
)
def test_what_would_not_see_the_rows_change_is_refused(
    arguments: dict[str, Any], message: str, tiny_splade: SparseEncoder, tmp_path: Path
) -> None:
    """It would train on the first negatives for ever, in silence."""
    negatives = MovingNegatives(retrieval_data(), NegativeRule())
    with pytest.raises(ValueError, match=message):
        make_trainer(tiny_splade, tmp_path, negatives, **arguments).train()


def test_a_sharded_model_is_refused(
    tiny_splade: SparseEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ranks encode other texts each, and a shard waits for the others at every layer."""
    negatives = MovingNegatives(retrieval_data(), NegativeRule())
    monkeypatch.setattr("lexforge.training.negatives.FSDPModule", SparseEncoder)
    with pytest.raises(ValueError, match=r"MovingNegatives .* FSDP2 does not allow; .*multi_gpu\.yaml"):
        make_trainer(tiny_splade, tmp_path, negatives).train()


def test_two_of_them_are_refused(tiny_splade: SparseEncoder, tmp_path: Path) -> None:
    """A checkpoint would not tell whose negatives are whose."""
    first, second = (MovingNegatives(retrieval_data(), NegativeRule()) for _ in range(2))
    trainer = make_trainer(tiny_splade, tmp_path, first)
    trainer.add_callback(second)
    with pytest.raises(ValueError, match="takes one MovingNegatives"):
        trainer.train()


def test_a_checkpoint_of_other_rows_is_refused(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Positions in another corpus are other documents."""

    def resume(make: Callable[[], MovingNegatives]) -> None:
        trainer = make_trainer(fresh(tiny_checkpoint), tmp_path, make())
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))

    data = retrieval_data()
    make_trainer(fresh(tiny_checkpoint), tmp_path, MovingNegatives(data, NegativeRule()), max_steps=1).train()
    with pytest.raises(ValueError, match=r"per row: it has \[rows, negatives\] \[12, 1\], .* \[12, 2\]"):
        resume(lambda: MovingNegatives(data, NegativeRule(per_row=2)))
    data.corpus["d13"] = "another text"
    with pytest.raises(ValueError, match="negatives of another corpus"):
        resume(lambda: MovingNegatives(data, NegativeRule()))


def test_a_checkpoint_without_negatives_is_refused(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """A run that had fixed negatives is another run."""
    negatives = MovingNegatives(retrieval_data(), NegativeRule())
    fixed = make_trainer(fresh(tiny_checkpoint), tmp_path, negatives, max_steps=1)
    fixed.remove_callback(MovingNegatives)
    fixed.train_dataset = Dataset.from_list(list(negatives.dataset))
    fixed.train()
    resumed = make_trainer(fresh(tiny_checkpoint), tmp_path, negatives)
    with pytest.raises(ValueError, match="step 1 holds no state of MovingNegatives"):
        resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))


def test_moving_rows_name_the_judged_documents() -> None:
    """The losses leave another relevant document out of a batch's negatives, as they do for fixed rows."""
    data = retrieval_data()
    query, grades = next(iter(data.split("train").items()))
    other = next(document for document in data.corpus if document not in grades)
    judged = {**data.split("train"), query: {**grades, other: 1}}
    data = replace(data, qrels={**data.qrels, "train": judged})
    dataset = MovingNegatives(data, NegativeRule(per_row=2)).dataset
    fixed = training_rows(data)
    assert dataset.column_names == ["anchor", "positive", "negative_1", "negative_2", "relevant"]
    assert [row["relevant"] for row in dataset] == [row["relevant"] for row in fixed]
    assert validate_columns(dataset) == ("anchor", "positive", "negative_1", "negative_2")

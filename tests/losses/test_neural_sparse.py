"""NeuralSparseLoss on tiny models and real batches: each part against the pure function by hand."""

from __future__ import annotations

import math

import pytest
import sentence_transformers
import torch
from packaging.version import Version
from sentence_transformers import SparseEncoder
from sentence_transformers.sparse_encoder import SparseEncoderTrainer
from sentence_transformers.sparse_encoder.data_collator import SparseEncoderDataCollator
from sentence_transformers.sparse_encoder.losses import CachedSpladeLoss, SpladeLoss
from small_runs import without_dropout

from lexforge.losses import NeuralSparseLoss, loss_tensors, neural_sparse
from lexforge.losses.base import TEACHER_KEY
from lexforge.losses.functional import (
    distillation,
    flops,
    idf_flops,
    info_nce,
    margin_mse,
    minimum_activation,
    own_activation,
    positive_activation,
    self_reconstruction,
    triplet_margin,
)
from lexforge.settings import NUMBER_NAMES, SparseLossNumbers

TEXTS = {
    "anchor": ["sort a list", "parse the tree", "write a file", "hash of a key"],
    "positive": [
        "sorted list of number",
        "tree parser read node",
        "open and write a file to path",
        "hash map key",
    ],
    "negative_1": ["close the file", "sum of number", "search the index", "graph of node and edge in a tree"],
    "negative_2": ["query", "save a model", "서울 검색", "yield value"],
    "negative_3": ["mean of array", "train the model with loss", "min", "error"],
}
SPECIAL = (0, 1, 2, 3, 4)
WEIGHTS = {
    "infonce": 3.0,
    "self_reconstruction": 0.5,
    "positive_activation": 2.0,
    "own_activation": 5.0,
    "triplet_margin": 2.5,
    "flops_query": 0.02,
    "flops_document": 0.01,
    "minimum_activation": 1.5,
    "distillation": 2.0,
}
OF_TOKENS = "self_reconstruction", "positive_activation", "own_activation"


def words(model) -> torch.Tensor:
    """A weight for each token, such as its idf."""
    return 4 * torch.rand(len(model.tokenizer), generator=torch.Generator().manual_seed(4))


def make_loss(model, **changes) -> NeuralSparseLoss:
    """Every term on, with weights of no round ratio; `changes` overrides arguments or switches terms off."""
    arguments = {
        **{f"{name}_weight": weight for name, weight in WEIGHTS.items() if not name.startswith("flops")},
        "flops_weight": WEIGHTS["flops_document"],
        "query_flops_weight": WEIGHTS["flops_query"],
        "special_token_ids": SPECIAL,
        "word_weights": words(model),
        "activation_threshold": 5.0,
    }
    return NeuralSparseLoss(model, **{**arguments, **changes})


def only(model, name: str, **changes) -> NeuralSparseLoss:
    """One term on, with weight 1."""
    off = dict.fromkeys((f"{term}_weight" for term in WEIGHTS if not term.startswith("flops")), 0.0)
    return make_loss(
        model, **{**off, "flops_weight": 0.0, "query_flops_weight": 0.0, f"{name}_weight": 1.0, **changes}
    )


def make_batch(model, columns: int, teacher: bool = True, scores=None):
    """Features and labels as the collator and the Trainer's grouping make them."""
    names = list(TEXTS)[:columns]
    rows = [
        dict(zip(names, texts, strict=True)) for texts in zip(*(TEXTS[name] for name in names), strict=True)
    ]
    if scores is not None:
        rows = [{**row, "label": row_scores} for row, row_scores in zip(rows, scores, strict=True)]
    batch = SparseEncoderDataCollator(preprocess_fn=model.preprocess)(rows)
    if teacher:
        torch.manual_seed(7)
        batch.update({f"{name}_{TEACHER_KEY}": torch.randn(4, 6, dtype=torch.float16) for name in names})
    return SparseEncoderTrainer.collect_features(None, batch)


def embed(model, features) -> list[torch.Tensor]:
    keys = "input_ids", "attention_mask", "token_type_ids"
    return [
        model({key: column[key] for key in keys if key in column})["sentence_embedding"]
        for column in features
    ]


@pytest.fixture
def model(tiny_splade: SparseEncoder) -> SparseEncoder:
    """Without dropout, so that two passes agree; training mode, as SpladePooling works in place in eval."""
    return without_dropout(tiny_splade)


def penalties(model) -> torch.Tensor:
    return 20 * torch.rand(len(model.tokenizer), generator=torch.Generator().manual_seed(3))


def close(actual, expected) -> None:
    # float32 on values of order 1 to 100; columns are embedded merged here and apart there
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
@pytest.mark.parametrize("columns", [2, 3, 5])
def test_each_part_is_its_weight_times_the_pure_function(model, columns: int, similarity: str) -> None:
    """The class may only choose inputs and weights; every formula has its home elsewhere."""
    model.similarity_fn_name = similarity
    changes = {} if columns > 2 else {"triplet_margin_weight": 0.0}
    weights = penalties(model)
    loss = make_loss(model, penalty_weights=weights, temperature=0.5, **changes)
    features, labels = make_batch(model, columns)
    parts = loss(features, labels)

    anchor, positive, *negatives = rows = embed(model, features)
    tokens = [(column["input_ids"], column["attention_mask"]) for column in features]
    stacked = torch.stack(negatives, dim=1) if negatives else None
    documents = torch.cat(rows[1:])
    teacher = [column[TEACHER_KEY].float() for column in features]

    def score(left, right) -> list[list[float]]:
        pair_score = (
            torch.nn.functional.cosine_similarity
            if similarity == "cosine"
            else lambda a, b, dim: (a * b).sum(dim)
        )
        return torch.stack([torch.stack([pair_score(a, b, dim=0) for b in right]) for a in left])

    def teacher_score(left, right) -> torch.Tensor:
        return torch.tensor(
            [[(a @ b / (a.norm() * b.norm())).item() for b in right.double()] for a in left.double()]
        )

    expected = {
        "infonce": info_nce(anchor, positive, stacked, 0.5, similarity),
        "self_reconstruction": sum(self_reconstruction(r, *t) for r, t in zip(rows, tokens, strict=True))
        / columns,
        "positive_activation": positive_activation(anchor, *tokens[1], SPECIAL),
        "own_activation": sum(own_activation(r, *t, words(model)) for r, t in zip(rows, tokens, strict=True))
        / columns,
        "flops_query": idf_flops(anchor, weights),
        "flops_document": idf_flops(documents, weights),
        "minimum_activation": sum(minimum_activation(r, 5, 5.0) for r in rows) / columns,
        "distillation": distillation(
            score(anchor, documents),
            teacher_score(teacher[0], torch.cat(teacher[1:])),
            match_scale=similarity == "dot",
        ),
    }
    if negatives:
        triplets = [triplet_margin(anchor, positive, negative) for negative in negatives]
        expected["triplet_margin"] = sum(triplets) / len(triplets)
    assert set(parts) == set(expected)
    for name, value in expected.items():
        assert value.item() != 0, f"{name} must not be compared at its zero"
        close(parts[name], WEIGHTS[name] * value)


def test_gradcheck_of_the_whole_sum(tiny_splade) -> None:
    """All parts together have the right gradient in float64, for every column."""
    torch.manual_seed(0)
    weights = {"penalty_weights": 3 * torch.rand(9), "word_weights": torch.rand(9)}
    loss = make_loss(tiny_splade, **weights, temperature=0.5, top_k=3)
    features = [
        {
            "input_ids": torch.randint(9, (3, 4)),
            "attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0]]),
            TEACHER_KEY: torch.randn(3, 5),
        }
        for _ in range(4)
    ]
    rows = [torch.rand(3, 9, dtype=torch.float64, requires_grad=True) for _ in features]

    def total(*embeddings):
        return sum(loss.compute_loss(list(embeddings), features, None).values())

    assert total(*rows).dtype == torch.float64
    assert torch.autograd.gradcheck(total, rows)


@pytest.mark.parametrize("name", WEIGHTS)
def test_weight_zero_is_not_computed(model, name: str, monkeypatch) -> None:
    """A term that is off is left out of the dict, the log and the sum, and its function is never entered."""
    function = {"infonce": "ranking_cross_entropy", "flops_query": "flops", "flops_document": "flops"}.get(
        name, name
    )

    def refuse(*_, **__):
        raise AssertionError(f"{function} was computed")

    monkeypatch.setattr(neural_sparse, function, refuse)
    off = {"flops_weight": 0.0, "query_flops_weight": 0.0} if function == "flops" else {f"{name}_weight": 0.0}
    features, labels = make_batch(model, 3)
    parts = make_loss(model, **off)(features, labels)
    assert set(parts) == {term for term in WEIGHTS if term != name and not term.startswith(function)}
    with pytest.raises(AssertionError, match="was computed"):
        make_loss(model)(features, labels)


def test_weights_are_read_at_each_call(model) -> None:
    """The curriculum writes them between steps."""
    loss = make_loss(model)
    features, labels = make_batch(model, 3)
    before = loss(features, labels)
    loss.weights["infonce"] *= 2
    loss.weights["distillation"] = 0.0
    after = loss(features, labels)
    close(after["infonce"], 2 * before["infonce"])
    assert "distillation" not in after
    loss.temperature *= 2
    assert loss(features, labels)["infonce"].item() != after["infonce"].item()


def test_the_anchor_alone_is_regularised_if_told(model) -> None:
    """The public code behind V26 leaves documents alone: their vectors must not reach these three terms."""
    features, labels = make_batch(model, 3)
    loss = make_loss(model, regularized="anchor")
    columns = embed(model, features)
    parts = loss.compute_loss(columns, features, labels)
    assert "flops_document" not in parts
    anchor = columns[0]
    tokens = features[0]["input_ids"], features[0]["attention_mask"]
    weights = loss.weights
    close(
        parts["self_reconstruction"],
        weights["self_reconstruction"] * self_reconstruction(anchor, *tokens),
    )
    close(parts["minimum_activation"], weights["minimum_activation"] * minimum_activation(anchor, 5, 5.0))
    assert parts["flops_query"] > 0


def test_queries_take_the_documents_weight_unless_told(model) -> None:
    """None is a default, 0 is off."""
    rows = [torch.rand(2, 20) for _ in range(2)]
    assert set(only(model, "flops", query_flops_weight=None).compute_loss_from_embeddings(rows)) == {
        "flops_query",
        "flops_document",
    }
    assert set(only(model, "flops").compute_loss_from_embeddings(rows)) == {"flops_document"}


@pytest.mark.parametrize("ramp", [0.0, 0.5, 1.0])
def test_the_ramp_scales_the_term_and_the_penalties_above_one(model, ramp: float) -> None:
    """100 for a special token from step 0 collapses a model; at 1 it is in full force, at 0 it is off."""
    weights = torch.tensor([100.0, 15.0, 1.0, 0.4, 0.0])
    effective = torch.tensor([1 + ramp * 99, 1 + ramp * 14, 1.0, 0.4, 0.0])
    rows = [torch.rand(3, 5) for _ in range(3)]
    loss = only(model, "flops", penalty_weights=weights, l2_ratio=0.7)
    loss.regularizer_ramp = ramp
    part = loss.compute_loss_from_embeddings(rows)["flops_document"]
    close(part, ramp * idf_flops(torch.cat(rows[1:]), effective, 0.7))
    if ramp == 1.0:
        close(part, idf_flops(torch.cat(rows[1:]), weights, 0.7))
    plain = only(model, "flops")
    plain.regularizer_ramp = ramp
    close(plain.compute_loss_from_embeddings(rows)["flops_document"], ramp * flops(torch.cat(rows[1:])))


def test_precomputed_scores_are_compared_within_each_row(model) -> None:
    """A label column of [positive, negative, ...] scores needs no teacher model."""
    scores = [[9.0, 1.0], [8.0, 2.5], [7.5, 0.5], [3.0, 3.5]]
    features, labels = make_batch(model, 3, teacher=False, scores=scores)
    for similarity in ("dot", "cosine"):
        model.similarity_fn_name = similarity
        anchor, positive, negative = embed(model, features)
        student = torch.stack([(anchor * positive).sum(1), (anchor * negative).sum(1)], dim=1)
        if similarity == "cosine":
            student = torch.stack(
                [torch.cosine_similarity(anchor, positive), torch.cosine_similarity(anchor, negative)], dim=1
            )
        loss = only(model, "distillation", distillation_temperature=2.0, kl_weight=0.4, mse_weight=0.9)
        expected = distillation(student, torch.tensor(scores), 2.0, 0.4, 0.9, match_scale=similarity == "dot")
        close(loss(features, labels)["distillation"], expected)


def test_integer_scores_are_scores(model) -> None:
    """Graded relevance arrives as int64."""
    features, labels = make_batch(model, 3, teacher=False, scores=[[3, 0], [2, 1], [3, 2], [1, 0]])
    assert labels.dtype == torch.int64
    loss = only(model, "distillation")
    close(loss(features, labels)["distillation"], loss(features, labels.float())["distillation"])


def test_distillation_refuses_what_it_cannot_use(model) -> None:
    """Neither, both, a part, or the wrong number of scores: one clear error each."""
    loss = only(model, "distillation")
    with pytest.raises(ValueError, match=r"neither"):
        loss(*make_batch(model, 3, teacher=False))
    with pytest.raises(ValueError, match=r"both"):
        loss(*make_batch(model, 3, teacher=True, scores=[[1.0, 0.0]] * 4))
    features, labels = make_batch(model, 3)
    del features[2][TEACHER_KEY]
    with pytest.raises(ValueError, match=r"2 of 3 columns"):
        loss(features, labels)
    for columns, scores in ((3, [[1.0, 0.0, 0.5]] * 4), (2, [[1.0]] * 4), (3, [1.0, 0.0, 1.0, 0.0])):
        with pytest.raises(ValueError, match=r"labels must hold one teacher score"):
            loss(*make_batch(model, columns, teacher=False, scores=scores))


def test_triplet_needs_a_negative(model) -> None:
    """The error names the missing column and the way out."""
    with pytest.raises(ValueError, match=r"triplet_margin.*negative"):
        make_loss(model)(*make_batch(model, 2))


def test_one_column_is_refused(model) -> None:
    """There is no pair to train on."""
    with pytest.raises(ValueError, match=r"received 1 column"):
        only(model, "infonce")(*make_batch(model, 1))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"infonce_weight": -1.0}, r"infonce.*-1\.0"),
        ({"flops_weight": float("nan")}, r"flops.*nan"),
        ({"distillation_weight": float("inf")}, r"distillation.*inf"),
        (
            dict.fromkeys(
                (f"{name}_weight" for name in [*WEIGHTS, "flops"] if not name.startswith("flops_")), 0.0
            ),
            "0 for every",
        ),
        ({"temperature": 0.0}, r"temperature.*0\.0"),
        ({"own_activation_weight": 1.0}, "word_weights"),
        ({"penalty_weights": torch.tensor([1.0, -1.0])}, "penalty_weights"),
        ({"penalty_weights": torch.tensor([1.0, float("nan")])}, "penalty_weights"),
        ({"word_weights": torch.tensor([1.0, -1.0])}, "word_weights"),
        ({"word_weights": torch.tensor([1.0, float("nan")])}, "word_weights"),
        ({"mse_weight": float("nan")}, "mse_weight"),
        ({"kl_weight": -1}, "kl_weight"),
        ({"regularized": "query"}, "'query'"),
    ],
)
def test_wrong_numbers_are_refused_at_construction(model, arguments: dict, message: str) -> None:
    """Before the first batch, with the name of the argument."""
    with pytest.raises(ValueError, match=message):
        NeuralSparseLoss(model, **arguments)


def test_penalty_weights_follow_the_device_and_stay_out_of_the_state(model) -> None:
    """They are derived from the corpus; the buffer exists so that `.to(device)` moves it."""
    loss = NeuralSparseLoss(model, penalty_weights=torch.ones(7, dtype=torch.float64))
    assert loss.penalty_weights.dtype == torch.float32
    assert dict(loss.named_buffers())["penalty_weights"] is loss.penalty_weights
    assert "penalty_weights" not in loss.state_dict()
    assert {id(parameter) for parameter in loss.parameters()} == {
        id(parameter) for parameter in model.parameters()
    }


def test_metrics_count_active_terms_and_are_not_parts(model) -> None:
    """The log shows how sparse queries and documents are, without training on it."""
    rows = [
        torch.tensor([[1.0, 0.0, 2.0], [0.0, 0.0, 0.0]]),
        torch.tensor([[1.0, 1.0, 1.0], [0.0, 0.0, 1.0]]),
    ]
    rows.append(torch.zeros(2, 3))
    loss = only(model, "infonce")
    assert set(loss.compute_loss_from_embeddings([row.requires_grad_() for row in rows])) == {"infonce"}
    assert {name: value.item() for name, value in loss.metrics.items()} == {
        "terms/query": 1.0,
        "terms/document": 1.0,
    }
    assert not any(value.requires_grad for value in loss.metrics.values())


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_saved_prompt_is_no_part_of_a_text(model, side: str) -> None:
    """Its tokens stand in every text: a term that wants a text's own tokens must not ask for them. The oracle
    is the pure function on the tokens of the texts without the prompt, which hold no special token here.
    """
    model.tokenizer.padding_side = side
    texts = {"anchor": ["sort list", "a"], "positive": ["tree node graph", "file"]}
    columns = []
    for column in texts.values():
        features = model.preprocess(column, prompt="search index ")
        special = torch.isin(features["input_ids"], torch.tensor(model.tokenizer.all_special_ids))
        features["attention_mask"] = features["attention_mask"] * ~special
        # Counted from the first unmasked token: the two words of the prompt.
        columns.append(features | {"prompt_length": 2})
    own = [
        model.tokenizer(column, padding=True, add_special_tokens=False, return_tensors="pt")
        for column in texts.values()
    ]
    tokens = [(column["input_ids"], column["attention_mask"]) for column in own]
    rows = embed(model, columns)
    found = only(model, "self_reconstruction")(columns)["self_reconstruction"]
    expected = [self_reconstruction(row, *pair) for row, pair in zip(rows, tokens, strict=True)]
    close(found, sum(expected) / 2)
    found = only(model, "positive_activation")(columns)["positive_activation"]
    close(found, positive_activation(rows[0], *tokens[1]))


@pytest.mark.parametrize("name", OF_TOKENS)
@pytest.mark.parametrize("prompt", [{}, {"prompt_length": 2}, {"prompt_length": torch.full((3,), 2)}])
def test_texts_without_padding_have_the_same_tokens(model, name: str, prompt: dict[str, object]) -> None:
    """Flash attention takes the texts of a column as one row, without a mask. The oracle is the padded
    column.
    """
    columns = [column | prompt for column in make_batch(model, 3, teacher=False)[0]]
    rows, flat = embed(model, columns), []
    for column in columns:
        mask = column["attention_mask"].bool()
        lengths = mask.sum(1)
        flat.append(
            prompt
            | {
                "input_ids": column["input_ids"][mask].unsqueeze(0),
                "cu_seq_lens_q": torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int(),
                "max_length_q": int(lengths.max()),
            }
        )
    loss = only(model, name)
    found, expected = (loss.compute_loss(rows, features, None)[name] for features in (flat, columns))
    assert expected != 0
    close(found, expected)


@pytest.mark.parametrize("name", OF_TOKENS)
def test_embeddings_alone_lack_the_tokens(model, name: str) -> None:
    """The error says which terms need tokens, where another loss encodes."""
    rows = [torch.rand(2, 20) for _ in range(3)]
    with pytest.raises(ValueError, match=r"tokens"):
        only(model, name).compute_loss_from_embeddings(rows)
    with pytest.raises(ValueError, match=r"neither"):
        only(model, "distillation").compute_loss_from_embeddings(rows)


def test_embeddings_alone_suffice_elsewhere(model) -> None:
    """What needs no tokens gives the same numbers as through `forward`."""
    loss = make_loss(model, **{f"{name}_weight": 0.0 for name in OF_TOKENS})
    features, labels = make_batch(
        model, 3, teacher=False, scores=[[3.0, 0.0], [2.0, 1.0], [3.0, 2.0], [1.0, 0.0]]
    )
    parts = loss(features, labels)
    from_embeddings = loss.compute_loss_from_embeddings(embed(model, features), labels)
    assert set(parts) == set(from_embeddings) == set(WEIGHTS) - set(OF_TOKENS)
    for name, part in parts.items():
        close(from_embeddings[name], part)


def test_all_padding_and_zero_activations_train_without_nan(model) -> None:
    """Empty texts and dead rows happen on real data; no part and no gradient may become NaN."""
    features = [
        {
            "input_ids": torch.zeros(2, 3, dtype=torch.long),
            "attention_mask": torch.zeros(2, 3, dtype=torch.long),
            TEACHER_KEY: torch.zeros(2, 4),
        }
        for _ in range(3)
    ]
    weights = {"penalty_weights": torch.ones(20), "word_weights": torch.ones(20)}
    for similarity in ("dot", "cosine"):
        model.similarity_fn_name = similarity
        rows = [torch.zeros(2, 20, requires_grad=True) for _ in features]
        parts = make_loss(model, **weights).compute_loss(rows, features, None)
        sum(parts.values()).backward()
        assert all(part.isfinite() for part in parts.values())
        assert all(row.grad.isfinite().all() for row in rows)


def test_cached_splade_loss_gives_the_gradients_of_splade_loss(model) -> None:
    """With the tokens' terms and our own sparsity off, the loss is a base loss of sentence-transformers'
    wrappers, small mini-batches included."""
    off = dict.fromkeys((f"{name}_weight" for name in (*OF_TOKENS, "flops", "query_flops")), 0.0)
    scores = [[3.0, 0.0], [2.0, 1.0], [3.0, 2.0], [1.0, 0.0]]
    model.double()
    gradients, names = [], []
    cuts = ({"mini_batch_size": 2}, {"mini_batch_num_tokens": 12})  # by texts, or by their tokens
    for wrapper, extra in ((SpladeLoss, {}), *((CachedSpladeLoss, cut) for cut in cuts)):
        features, labels = make_batch(model, 3, teacher=False, scores=scores)
        loss = wrapper(
            model,
            loss=make_loss(model, **off),
            document_regularizer_weight=1e-3,
            query_regularizer_weight=1e-3,
            **extra,
        )
        model.zero_grad()
        parts = loss(features, labels)
        sum(parts.values()).backward()
        names.append(set(parts))
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    assert {"infonce", "triplet_margin", "minimum_activation", "distillation"} < names[0]
    # float64, summed in another order; before 6.2 the wrapper takes its cached gradients in float32
    exact = Version(sentence_transformers.__version__) >= Version("6.2")
    tolerance = {"rtol": 1e-9, "atol": 1e-9} if exact else {"rtol": 1e-4, "atol": 1e-5}
    for cached in (1, 2):
        assert names[0] == names[cached]
        torch.testing.assert_close(gradients[0], gradients[cached], **tolerance)


def test_the_trainer_of_sentence_transformers_runs_it(tiny_splade, tmp_path) -> None:
    """Two real steps: the collator's batch, the sum of the parts, each part in the log, changed weights."""
    datasets = pytest.importorskip("datasets")
    from sentence_transformers.sparse_encoder import SparseEncoderTrainingArguments

    arguments = SparseEncoderTrainingArguments(
        output_dir=str(tmp_path),
        max_steps=2,
        per_device_train_batch_size=2,
        learning_rate=1e-3,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    names = list(TEXTS)[:4]
    data = datasets.Dataset.from_dict(
        {**{name: TEXTS[name] for name in names}, "scores": [[3.0, 1.0, 0.0]] * 4}
    )
    loss = make_loss(tiny_splade, penalty_weights=penalties(tiny_splade))
    before = [parameter.detach().clone() for parameter in tiny_splade.parameters()]
    trainer = SparseEncoderTrainer(model=tiny_splade, args=arguments, train_dataset=data, loss=loss)
    trainer.train()
    steps = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(steps) == 2
    for entry in steps:
        assert set(WEIGHTS) < set(entry)
        # the log is rounded to a few digits
        assert math.fsum(entry[name] for name in WEIGHTS) == pytest.approx(entry["loss"], rel=1e-2)
    assert any(not torch.equal(old, new) for old, new in zip(before, tiny_splade.parameters(), strict=True))


def test_settings_for_the_model_card(model) -> None:
    """A model card that lacks a number describes another training run."""
    loss = make_loss(model, penalty_weights=penalties(model), temperature=0.5)
    settings = loss.get_config_dict()
    assert settings["temperature"] == 0.5
    assert settings["triplet_margin_weight"] == WEIGHTS["triplet_margin"]
    assert (settings["similarity"], settings["idf_aware_flops"]) == ("dot", True)
    assert set(NUMBER_NAMES) < set(settings)
    assert "SPLADE" in loss.citation


def test_an_unknown_number_is_refused(model) -> None:
    """A misspelt weight must not leave its default in force without a word."""
    with pytest.raises(TypeError, match="flop_weight"):
        NeuralSparseLoss(model, flop_weight=0.1)


def test_margin_mse_is_a_term(model) -> None:
    """Of all candidates of the batch with the teacher's embeddings, of each row's own with listed scores."""
    features, labels = make_batch(model, 3)
    loss = only(model, "margin_mse")
    documents = torch.cat(embed(model, features)[1:])
    student = embed(model, features)[0] @ documents.T
    teacher = [torch.nn.functional.normalize(column[TEACHER_KEY].float(), dim=1) for column in features]
    scores = teacher[0] @ torch.cat(teacher[1:]).T
    own = torch.arange(4)
    close(loss(features, labels)["margin_mse"], margin_mse(student, scores, positive=own))
    assert loss_tensors(loss) == {}
    listed, labels = make_batch(
        model, 3, teacher=False, scores=[[9.0, 1.0], [8.0, 2.5], [7.5, 0.5], [3.0, 3.5]]
    )
    anchor, positive, negative = embed(model, listed)
    margin = (anchor * positive).sum(1) - (anchor * negative).sum(1)
    close(loss(listed, labels)["margin_mse"], (margin - (labels[:, 0] - labels[:, 1])).square().mean())


def test_no_host_sync_in_a_call(model) -> None:
    """Each `.item()` or mask selection makes an accelerator wait; checks are numpy's on the CPU."""
    from torch.utils._python_dispatch import TorchDispatchMode

    waits = {"_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal"}

    found: list[str] = []

    class Counts(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            name = str(function).split(".")[1]  # of such as aten.nonzero.default
            if name in waits:
                found.append(name)
            return function(*args, **(kwargs or {}))

    loss = make_loss(model, penalty_weights=penalties(model), margin_mse_weight=1.0)
    features, labels = make_batch(model, 3)
    rows = [row.detach().requires_grad_() for row in embed(model, features)]
    with Counts():
        sum(loss.compute_loss(rows, features, labels).values()).backward()
    assert found == []


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
@pytest.mark.parametrize("listed", [False, True])
def test_the_graph_keeps_no_copy_of_the_activations(model, similarity: str, listed: bool) -> None:
    """At 250,002 terms each float copy of a column fills as much memory as the column itself."""
    model.similarity_fn_name = similarity
    loss = make_loss(model, penalty_weights=penalties(model), margin_mse_weight=1.0)
    scores = torch.randn(4, 3).tolist() if listed else None
    features, labels = make_batch(model, 4, teacher=not listed, scores=scores)
    rows = [row.detach().requires_grad_() for row in embed(model, features)]
    own = {row.untyped_storage().data_ptr() for row in rows}
    copies = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.nbytes() >= rows[0].nbytes and storage.data_ptr() not in own:
            copies.append(tuple(tensor.shape))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        sum(loss.compute_loss(rows, features, labels).values()).backward()
    assert copies == []
    assert all(row.grad is not None for row in rows)


@pytest.mark.parametrize(
    ("numbers", "needed"),
    [
        ({}, True),
        ({"distillation_weight": 0.0}, False),
        ({"distillation_weight": 0.0, "margin_mse_weight": 0.1}, True),
    ],
)
def test_what_needs_a_teacher(numbers: dict, needed: bool) -> None:
    """A recipe loads the teacher by this."""
    assert SparseLossNumbers(**numbers).needs_teacher is needed

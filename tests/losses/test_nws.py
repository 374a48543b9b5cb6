"""NWS against a loop over queries, references and labels in Python numbers (docs/losses.md, section 14)."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch
from small_runs import without_dropout

from lexforge.losses import NWSLoss, loss_tensors
from lexforge.losses.functional import compute_label_pair_similarity, nws


def naive(
    queries, query_labels, prototypes, similarity, keys, key_labels, queue, queue_labels, settings
) -> float:
    """The formulas of docs/losses.md, section 14, in their order; None for references that are absent."""
    alpha, beta, temperature, aggregate, eps = settings
    unit = lambda vector: [x / math.hypot(*vector) for x in vector]  # noqa: E731
    z = [unit(row) for row in queries.tolist()]
    y = query_labels.long().tolist()
    s = similarity.tolist()
    instances = []  # (vector, labels) of keys and queue
    for vectors, labels in ((keys, key_labels), (queue, queue_labels)):
        if vectors is not None:
            instances += zip(map(unit, vectors.tolist()), labels.long().tolist(), strict=True)
    label_vectors = [] if prototypes is None else [unit(row) for row in prototypes.tolist()]
    label_range = range(len(s))
    total = 0.0
    for z_i, y_i in zip(z, y, strict=True):
        size = sum(y_i)
        score = lambda v, z_i=z_i: sum(a * b for a, b in zip(z_i, v, strict=True)) / temperature  # noqa: E731
        if not size:
            continue
        # supplement 3: contributions, normaliser
        contributions = []
        for _, y_r in instances:
            either = sum(max(a, b) for a, b in zip(y_i, y_r, strict=True))
            contributions.append([alpha * y_i[c] * y_r[c] / either for c in label_range])
        normaliser = [
            sum(m[c] for m in contributions) + (1 - alpha / size) * y_i[c] + eps for c in label_range
        ]
        positives, denominator, negatives = [], 0.0, 0
        for (v, y_r), m in zip(instances, contributions, strict=True):
            if sum(a * b for a, b in zip(y_i, y_r, strict=True)) > 0:
                positives.append((sum(m[c] / normaliser[c] for c in label_range if m[c]), score(v)))
                continue
            pairs = [(c, d) for c in label_range for d in label_range if y_i[c] and y_r[d]]
            if aggregate == "mean":
                alike = sum(s[c][d] for c, d in pairs) / (size * sum(y_r) + eps) if pairs else 0.0
            else:
                alike = max((s[c][d] for c, d in pairs), default=0.0)
            denominator += beta * (1 - alike) * math.exp(score(v))
            negatives += alike < 1
        for c, v in enumerate(label_vectors):
            if y_i[c]:
                positives.append((1 / normaliser[c] if normaliser[c] else 0.0, score(v)))
            else:
                denominator += math.exp(score(v))
                negatives += 1
        if negatives:
            rows = [-weight * (logit - math.log(denominator + eps)) for weight, logit in positives]
            total += math.fsum(rows) / (size + eps)
    return total / len(y)


def case(seed: int, sections: str, density: float = 0.35):
    """Random tensors in float64; `sections` names the references that are there."""
    generator = torch.Generator().manual_seed(seed)

    def size(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=generator))

    rows, width, labels = size(1, 6), size(2, 5), size(1, 6)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    hot = lambda count: (torch.rand(count, labels, generator=generator) < density).long()  # noqa: E731
    similarity = torch.rand(labels, labels, generator=generator, dtype=torch.float64)
    similarity = (similarity + similarity.T) / 2
    keys = size(1, 6) if "keys" in sections else None
    queue = size(1, 9) if "queue" in sections else None
    return (
        draw(rows, width),
        hot(rows),
        draw(labels, width) if "prototypes" in sections else None,
        similarity,
        None if keys is None else draw(keys, width),
        None if keys is None else hot(keys),
        None if queue is None else draw(queue, width),
        None if queue is None else hot(queue),
    )


def call(tensors, settings=(1.0, 1.0, 0.07, "mean", 1e-8)):
    queries, query_labels, prototypes, similarity, keys, key_labels, queue, queue_labels = tensors
    alpha, beta, temperature, aggregate, eps = settings
    return nws(
        queries,
        query_labels,
        prototypes,
        similarity,
        keys=keys,
        key_labels=key_labels,
        queue=queue,
        queue_labels=queue_labels,
        alpha=alpha,
        beta=beta,
        temperature=temperature,
        aggregate=aggregate,
        eps=eps,
    )


SECTIONS = [
    "prototypes",
    "keys prototypes",
    "queue prototypes",
    "keys queue prototypes",
    "keys queue",
    "keys",
]
SETTINGS = [
    (1.0, 1.0, 0.07, "mean", 1e-8),
    (1.0, 1.0, 0.07, "max", 1e-8),
    (0.4, 2.5, 0.5, "mean", 0.0),
    (0.4, 0.3, 0.005, "max", 0.0),
    (0.9, 1.7, 1.0, "max", 0.05),
    (0.9, 1.7, 1.0, "mean", 0.05),
]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("sections", SECTIONS)
def test_equals_a_loop(settings, sections: str) -> None:
    """Every formula of the definition, term by term, over random shapes, labels and references."""
    if "keys" not in sections:
        settings = (min(settings[0], 0.99), *settings[1:])  # an alpha of 1 is refused there
    seen = set()
    for seed in range(30):
        tensors = case(seed, sections, density=0.2 + 0.02 * seed)
        expected = naive(*tensors, settings)
        # float64; with eps 1e-8 and no reference of a label, weights near 1e8 lose eight digits of a sum
        assert call(tensors, settings).item() == pytest.approx(expected, rel=1e-9, abs=1e-10), seed
        seen.add(round(expected, 6))
    assert len(seen) >= 12, "the cases must not all be the degenerate 0"


@pytest.mark.parametrize("temperature", [0.07, 0.005])
@pytest.mark.parametrize("aggregate", ["mean", "max"])
def test_float32_is_as_exact_as_float32_can_be(temperature: float, aggregate: str) -> None:
    """Nothing overflows or is lost at temperature .005, where exp(s / T) reaches 7e86."""
    for seed in range(20):
        tensors = case(seed, "keys queue prototypes")
        single = [None if t is None else t.float() for t in tensors]
        settings = (0.9, 1.3, temperature, aggregate, 1e-8)
        expected = naive(*tensors, settings)
        # a cosine of float32 is off by some 1e-7, divided by the temperature, times a weight of a few
        assert call(single, settings).item() == pytest.approx(expected, rel=2e-6, abs=3e-6 / temperature)


@pytest.mark.parametrize("aggregate", ["mean", "max"])
@pytest.mark.parametrize("eps", [0.0, 1e-8, 0.1])
def test_gradcheck(aggregate: str, eps: float) -> None:
    """The gradients of queries and prototypes are right in float64, with rows that are dropped among them."""
    queries, labels, prototypes, *rest = case(11, "keys queue prototypes")
    labels = torch.cat([labels, torch.zeros_like(labels[:1]), torch.ones_like(labels[:1])])
    queries = torch.cat([queries, torch.ones_like(queries[:1]), torch.ones_like(queries[:1])])
    queries.requires_grad_()
    prototypes.requires_grad_()
    settings = (0.8, 1.2, 0.3, aggregate, eps)
    assert torch.autograd.gradcheck(lambda q, p: call((q, labels, p, *rest), settings), (queries, prototypes))


def test_by_hand() -> None:
    """Two labels with similarity .25, unit vectors, temperature 1.

    Query e1 with label 0. Key e1 with label 0: a positive of score 1. Key e2 with label 1: a negative of
    score 0 that weighs beta * (1 - .25) = 1.5. Prototypes e1 (positive, score 1) and -e1 (negative, score -1,
    weight 1). Share of the key: alpha / 1 = .5, so D = .5 + (1 - .5) = 1, and both weights are .5 / 1 and
    1 / 1. The loss is 1.5 * (log(1.5 + exp(-1)) - 1).
    """
    e1, e2 = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    one, two = torch.tensor([[1, 0]]), torch.tensor([[0, 1]])
    similarity = torch.tensor([[1.0, 0.25], [0.25, 1.0]])
    arguments = {"alpha": 0.5, "beta": 2.0, "temperature": 1.0, "eps": 0.0}
    expected = 1.5 * (math.log(1.5 + math.exp(-1)) - 1)
    for aggregate in ("mean", "max"):
        loss = nws(
            2 * e1,  # normalised inside
            one,
            torch.cat([e1, -3 * e1]),
            similarity,
            keys=torch.cat([e1, e2]),
            key_labels=torch.cat([one, two]),
            aggregate=aggregate,
            **arguments,
        )
        assert loss.item() == pytest.approx(expected, abs=1e-6)


def leaves(tensors):
    for tensor in tensors:
        if tensor is not None and tensor.is_floating_point():
            tensor.requires_grad_()
    return tensors


@pytest.mark.parametrize("eps", [0.0, 1e-8])
@pytest.mark.parametrize("aggregate", ["mean", "max"])
@pytest.mark.parametrize(
    ("query_labels", "key_labels", "expected"),
    [
        ([[0, 0], [0, 0]], [[1, 0]], 0.0),
        ([[1, 1], [1, 1]], [[1, 0]], 0.0),
        ([[1, 1], [1, 1]], [[0, 0]], None),
        ([[1, 0], [1, 0]], [[1, 0]], None),
        ([[1, 0], [0, 1]], [[0, 0]], None),
        ([[1, 0]], [[0, 1]], None),
    ],
    ids=["no label", "no negative", "a key without label", "all equal", "no shared label", "one row"],
)
def test_degenerate_labels(query_labels, key_labels, expected, aggregate: str, eps: float) -> None:
    """No label, no negative, no positive key, one row: a finite value and finite gradients."""
    torch.manual_seed(0)
    queries, keys = torch.randn(len(query_labels), 3), torch.randn(len(key_labels), 3)
    prototypes = torch.randn(2, 3)
    tensors = queries, torch.tensor(query_labels), prototypes, torch.eye(2), keys, torch.tensor(key_labels)
    loss = call((*leaves(tensors), None, None), (0.5, 1.0, 0.07, aggregate, eps))
    loss.backward()
    assert loss.isfinite()
    assert queries.grad.isfinite().all()
    assert prototypes.grad.isfinite().all()
    if expected is not None:
        assert loss.item() == expected
        assert not queries.grad.any()


def test_negatives_that_weigh_nothing_are_no_negatives() -> None:
    """A similarity of 1 takes the only negative away; its logarithm must not reach the loss."""
    query = torch.tensor([[1.0, 0.0]], requires_grad=True)
    for aggregate in ("mean", "max"):
        loss = nws(
            query,
            torch.tensor([[1, 0]]),
            None,
            torch.ones(2, 2),
            keys=torch.rand(2, 2),
            key_labels=torch.tensor([[1, 0], [0, 1]]),
            aggregate=aggregate,
            eps=0.0,
        )
        (gradient,) = torch.autograd.grad(loss, query)
        assert loss.item() == 0
        assert not gradient.any()


def test_a_label_without_weight_at_eps_zero() -> None:
    """alpha 1, one label, no key of it: D is 0, and 1 / D has no value."""
    query = torch.tensor([[1.0, 0.0]], requires_grad=True)
    others = {"keys": torch.rand(1, 2), "key_labels": torch.tensor([[0, 1]])}
    loss = nws(
        query, torch.tensor([[1, 0]]), torch.rand(2, 2), torch.eye(2), **others, aggregate="mean", eps=0.0
    )
    loss.backward()
    assert loss.item() == 0
    assert not query.grad.any()


def test_zero_vectors() -> None:
    """A zero embedding scores 0 everywhere."""
    queries = torch.zeros(2, 3, requires_grad=True)
    labels = torch.eye(2, dtype=torch.long)
    keys = {"keys": torch.zeros(2, 3), "key_labels": labels}
    loss = nws(queries, labels, torch.zeros(2, 3), torch.zeros(2, 2), aggregate="max", **keys)
    loss.backward()
    # alpha 1: D = 1, weights 1 and 1; the denominator holds a key and a prototype of score 0
    assert loss.item() == pytest.approx(2 * math.log(2), abs=1e-6)
    assert queries.grad.isfinite().all()


def test_keys_and_queue_carry_no_gradient() -> None:
    """They are constants of the step, whatever made them."""
    tensors = leaves(case(3, "keys queue prototypes"))
    tensors[3].requires_grad_(False)
    call(tensors).backward()
    queries, _, prototypes, _, keys, _, queue, _ = tensors
    assert queries.grad.any()
    assert prototypes.grad.any()
    assert keys.grad is None
    assert queue.grad is None


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float32])
def test_labels_of_any_dtype(dtype: torch.dtype) -> None:
    """The collator brings int64, a queue holds bytes."""
    tensors = list(case(5, "keys queue prototypes"))
    expected = call(tensors).item()
    for place in (1, 5, 7):
        tensors[place] = tensors[place].to(dtype)
    assert call(tensors).item() == expected
    tensors[3] = tensors[3].numpy()  # as compute_label_pair_similarity returns it
    assert call(tensors).item() == expected
    tensors[4] = tensors[4].float()  # a float32 queue under a float64 model
    assert call(tensors).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"queries": torch.rand(3)}, r"queries must be \[B, F\].*\(3,\)"),
        ({"query_labels": torch.ones(2, 4)}, r"query_labels must be \[2, 3\].*\(2, 4\)"),
        ({"query_labels": torch.tensor([[1, 0, 0], [0, -1, 0]])}, "query_labels.*row 1 holds -1 for label 1"),
        ({"prototypes": torch.rand(2, 4)}, r"prototypes must be \[3, 4\].*\(2, 4\)"),
        ({"label_similarity": torch.rand(3, 2)}, r"label_similarity must be \[L, L\]"),
        ({"key_labels": None}, "keys and key_labels"),
        ({"queue": None}, "queue and queue_labels"),
        ({"keys": torch.rand(2, 5)}, r"keys must be \[N, 4\].*\(2, 5\)"),
        ({"queue_labels": torch.ones(4, 3)}, r"queue_labels must be \[5, 3\].*\(4, 3\)"),
        ({"temperature": 0.0}, "temperature.*0.0"),
        ({"alpha": 0.0}, "alpha.*0.0"),
        ({"beta": -1.0}, "beta.*-1.0"),
        ({"beta": float("nan")}, "beta.*nan"),
        ({"eps": -1e-9}, "eps.*-1e-09"),
        ({"aggregate": "median"}, "'median'"),
    ],
)
def test_bad_input_is_one_clear_error(change, message: str) -> None:
    """What was received and what is allowed."""
    arguments = {
        "queries": torch.rand(2, 4),
        "query_labels": torch.tensor([[1, 0, 0], [0, 1, 1]]),
        "prototypes": torch.rand(3, 4),
        "label_similarity": torch.eye(3),
        "keys": torch.rand(2, 4),
        "key_labels": torch.tensor([[1, 0, 0], [0, 1, 1]]),
        "queue": torch.rand(5, 4),
        "queue_labels": torch.ones(5, 3),
        "aggregate": "mean",
    }
    nws(**arguments)
    with pytest.raises(ValueError, match=message):
        nws(**(arguments | change))


def test_no_reference_at_all_is_refused_and_the_aggregate_has_no_default() -> None:
    """Nothing to compare with is a mistake of the call, not a loss of 0."""
    arguments = torch.rand(2, 4), torch.ones(2, 3), None, torch.eye(3)
    with pytest.raises(ValueError, match="no reference"):
        nws(*arguments, aggregate="mean")
    with pytest.raises(TypeError, match="aggregate"):
        nws(*arguments)


@pytest.mark.parametrize("alpha", [1.0, 1.5])
@pytest.mark.parametrize("with_queue", [False, True])
def test_an_alpha_of_one_without_keys_is_refused(alpha: float, with_queue: bool) -> None:
    """A prototype of a label that no reference carries would weigh 1 / eps: the loss was -2.7e7."""
    queue = {"queue": torch.rand(4, 4), "queue_labels": torch.eye(4)[:, :3]} if with_queue else {}
    arguments = torch.rand(2, 4), torch.tensor([[1, 0, 0], [0, 1, 1]]), torch.rand(3, 4), torch.eye(3)
    with pytest.raises(ValueError, match=f"without keys alpha must be below 1.*{alpha}"):
        nws(*arguments, **queue, aggregate="mean", alpha=alpha)
    assert abs(nws(*arguments, **queue, aggregate="mean", alpha=0.5)) < 1e3


PEAK = """
import resource, torch
from lexforge.losses.nws import nws
torch.set_num_threads(1)
torch.manual_seed(0)
batch, entries, labels, width = 64, 16384, 118, 64
hot = lambda rows: (torch.rand(rows, labels) < 0.03).to(torch.uint8)
queries = torch.randn(batch, width, requires_grad=True)
prototypes = torch.randn(labels, width, requires_grad=True)
queue, queue_labels, similarity = torch.randn(entries, width), hot(entries), torch.rand(labels, labels)
similarity = (similarity + similarity.T) / 2
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for aggregate in ("mean", "max"):
    nws(queries, hot(batch), prototypes, similarity, queue=queue, queue_labels=queue_labels,
        alpha=0.5, aggregate=aggregate).backward()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


@pytest.mark.slow
def test_memory_stays_that_of_matrices_of_query_by_reference() -> None:
    """[B, K, L] alone would take 495 MB here and [B, K, L, L] 58 GB; a [B, K] takes 4 MB."""
    done = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 150


# The module


SIMILARITY = torch.tensor([[1.0, 0.3, 0.0], [0.3, 1.0, 0.6], [0.0, 0.6, 1.0]])
TEXTS = ["sort a list of numbers", "read the file", "parse a tree", "서울 검색 문서"]
LABELS = torch.tensor([[1, 0, 0], [0, 1, 1], [0, 0, 1], [0, 0, 0]])


def make_loss(model, **settings):
    torch.manual_seed(0)
    return NWSLoss(model, SIMILARITY, **({"aggregate": "max", "queue_size": 8} | settings))


def features(model, texts=TEXTS):
    return [model.preprocess(texts)]


def expected(loss, model, sections: str, queue=None, queue_labels=None, texts=TEXTS, labels=LABELS):
    """The pure function on what the model in evaluation mode says of the texts."""
    was_training = model.training
    model.eval()
    vectors = model(model.preprocess(texts))["sentence_embedding"]
    model.train(was_training)
    value = nws(
        vectors,
        labels,
        loss.prototypes if "prototypes" in sections else None,
        SIMILARITY,
        keys=vectors if "keys" in sections else None,
        key_labels=labels if "keys" in sections else None,
        queue=queue,
        queue_labels=queue_labels,
        **loss.settings,
    )
    return value, vectors.detach()


def test_references_are_keys_queue_and_prototypes(tiny_dense) -> None:
    """First batch: keys and prototypes. Second batch: the keys of the first one, with their labels, too."""
    model = without_dropout(tiny_dense)
    loss = make_loss(model, alpha=0.7, beta=1.4, temperature=0.2)
    value, vectors = expected(loss, model, "keys prototypes")
    # the average starts as the model, so keys are the embeddings themselves; float32, batched otherwise
    torch.testing.assert_close(loss(features(model), LABELS), value, rtol=1e-5, atol=1e-5)
    assert len(loss.queue) == 4
    held, held_labels = loss.queue.contents()
    torch.testing.assert_close(held, torch.nn.functional.normalize(vectors, dim=-1), rtol=1e-5, atol=1e-5)
    assert held_labels.tolist() == LABELS.tolist()
    value, _ = expected(loss, model, "keys prototypes", queue=vectors, queue_labels=LABELS)
    loss_value = loss(features(model), LABELS)
    torch.testing.assert_close(loss_value, value, rtol=1e-5, atol=1e-5)
    loss_value.backward()
    assert loss.prototypes.grad.any()
    assert all(parameter.grad is None for parameter in loss.momentum_encoder.tensors().values())


def test_the_key_follows_the_model_slowly(tiny_dense) -> None:
    """Keys are the moving average's: after a large step of the model they are still near where they were."""
    model = without_dropout(tiny_dense)
    loss = make_loss(model, momentum=0.999)
    loss(features(model), LABELS)
    first = loss.queue.contents()[0]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    loss(features(model), LABELS)
    second = loss.queue.contents()[0][4:]
    assert (first * second).sum(dim=1).min() > 0.99
    own = torch.nn.functional.normalize(model(features(model)[0])["sentence_embedding"], dim=-1)
    assert (own * second).sum(dim=1).mean() < 0.9


@pytest.mark.parametrize(
    "sections", ["keys", "prototypes", "keys prototypes", "queue prototypes", "queue keys"]
)
def test_each_section_can_be_switched_off(tiny_dense, sections: str) -> None:
    """What is off is neither a reference nor there."""
    model = without_dropout(tiny_dense)
    settings = {"use_keys": "keys" in sections, "use_prototypes": "prototypes" in sections, "alpha": 0.5}
    loss = make_loss(model, queue_size=8 if "queue" in sections else 0, **settings)
    assert (loss.prototypes is None) == ("prototypes" not in sections)
    assert (loss.queue is None) == ("queue" not in sections)
    assert (loss.momentum_encoder is None) == (sections == "prototypes")
    loss(features(model), LABELS)
    held = None if loss.queue is None else loss.queue.contents()[0]
    value, _ = expected(loss, model, sections, held, None if held is None else LABELS)
    torch.testing.assert_close(loss(features(model), LABELS), value, rtol=1e-5, atol=1e-5)


def test_evaluation_reads_and_changes_nothing(tiny_dense) -> None:
    """Keys by the average and the queue as they stand, again and again the same."""
    model = without_dropout(tiny_dense)
    loss = make_loss(model)
    loss(features(model), LABELS)
    model.eval()
    before = {name: tensor.clone() for name, tensor in loss_tensors(loss).items()}
    held, held_labels = loss.queue.contents()
    value, _ = expected(loss, model, "keys prototypes", held, held_labels)
    for _ in range(2):
        torch.testing.assert_close(loss(features(model), LABELS), value, rtol=1e-5, atol=1e-5)
    model.train()
    with torch.no_grad():  # as in a wrapper that stays in train mode
        loss(features(model), LABELS)
    for name, tensor in loss_tensors(loss).items():
        assert torch.equal(tensor, before[name]), name


def test_embeddings_of_another_loss_stand_in_for_the_keys(tiny_dense) -> None:
    """Without texts there is nothing the average could encode; nothing enters the queue."""
    loss = make_loss(tiny_dense.train())
    vectors = torch.randn(4, 32, requires_grad=True)
    value = loss.compute_loss_from_embeddings([vectors], LABELS)
    references = {"keys": vectors, "key_labels": LABELS}
    torch.testing.assert_close(
        value, nws(vectors, LABELS, loss.prototypes, SIMILARITY, **references, **loss.settings)
    )
    views = torch.randn(4, 32)
    torch.testing.assert_close(
        loss.compute_loss_from_embeddings([vectors, views], LABELS),
        nws(vectors, LABELS, loss.prototypes, SIMILARITY, keys=views, key_labels=LABELS, **loss.settings),
    )
    assert len(loss.queue) == 0


def test_a_second_column_is_the_key(tiny_dense) -> None:
    """Another text of the same labels, such as a translation, in the place of the text itself."""
    model = without_dropout(tiny_dense)
    loss = make_loss(model)
    views = TEXTS[::-1]
    value = loss([*features(model), *features(model, views)], LABELS)
    model.eval()
    rows = [model(model.preprocess(texts))["sentence_embedding"] for texts in (TEXTS, views)]
    references = {"keys": rows[1], "key_labels": LABELS}
    torch.testing.assert_close(
        value, nws(rows[0], LABELS, loss.prototypes, SIMILARITY, **references, **loss.settings)
    )


def test_what_a_user_sees_of_it(tiny_dense) -> None:
    """The model card gets the settings; the state is named; numpy similarities are taken."""
    loss = NWSLoss(tiny_dense, SIMILARITY.double().numpy(), aggregate="mean")
    assert loss.get_config_dict() == {
        "alpha": 1.0,
        "beta": 1.0,
        "temperature": 0.07,
        "aggregate": "mean",
        "eps": 1e-8,
        "label_count": 3,
        "queue_size": 4096,
        "momentum": 0.999,
        "use_keys": True,
        "use_prototypes": True,
        "mini_batch_size": None,
    }
    assert "Decoupled Contrastive Learning" in loss.citation
    assert "Aur{\\'e}lien" in loss.citation
    own = {name for name in loss_tensors(loss) if not name.startswith("momentum_encoder.")}
    assert own == {"prototypes", "queue.keys", "queue.labels", "queue.enqueued"}


def label_rows(topics, count: int = 96) -> list[dict]:
    """A text of a topic with two labels: its topic, and the pair of topics that it belongs to."""
    rows = []
    for row, (text, _) in enumerate(topics.pairs(count)):
        topic = row % 6
        rows.append({"text": text, "label": [int(c == topic or c == 6 + topic // 2) for c in range(9)]})
    return rows


@pytest.mark.parametrize(("way", "aggregate"), [("fit", "mean"), ("trainer", "max")])
def test_separates_topics(tiny_dense, topics, way: str, aggregate: str) -> None:
    """Through `SentenceTransformer.fit` and the Trainer, by their own label column."""
    rows = label_rows(topics)
    similarity = compute_label_pair_similarity([row["label"] for row in rows], "npmi")
    before = topics.separation(tiny_dense)
    torch.manual_seed(0)
    loss = NWSLoss(tiny_dense, similarity, aggregate=aggregate, queue_size=64, momentum=0.9, temperature=0.2)
    topics.train(tiny_dense, loss, rows, way)
    assert len(loss.queue) == 64
    assert topics.separation(tiny_dense) > before + 0.3


def test_trains_a_sparse_encoder(tiny_splade, topics) -> None:
    """Cosine of sparse vectors, with a short queue as wide as the vocabulary."""
    rows = label_rows(topics)
    tiny_splade.similarity_fn_name = "cosine"
    before = topics.separation(tiny_splade)
    torch.manual_seed(0)
    loss = NWSLoss(tiny_splade, torch.zeros(9, 9), aggregate="mean", queue_size=32, momentum=0.9)
    topics.train(tiny_splade, loss, rows, "sparse trainer", steps=30)
    assert topics.separation(tiny_splade) > before + 0.1


@pytest.mark.parametrize(
    ("similarity", "settings", "message"),
    [
        (torch.rand(3, 2), {}, r"\[L, L\].*\(3, 2\)"),
        (SIMILARITY, {"temperature": 0.0}, "temperature"),
        (SIMILARITY, {"queue_size": -4}, "queue.*-4"),
        (SIMILARITY, {"momentum": 1.0}, "momentum"),
        (SIMILARITY, {"use_keys": False}, "alpha must be below 1.*1.0"),
        (
            SIMILARITY,
            {"use_keys": False, "queue_size": 0, "use_prototypes": False},
            "needs keys or prototypes",
        ),
        (SIMILARITY, {"use_keys": False, "use_prototypes": False, "alpha": 0.5}, "the queue is empty"),
    ],
)
def test_bad_settings_are_refused_at_construction(tiny_dense, similarity, settings, message: str) -> None:
    """Before hours of training."""
    with pytest.raises(ValueError, match=message):
        NWSLoss(tiny_dense, similarity, **({"aggregate": "mean"} | settings))


def test_bad_batches_are_refused_at_the_first_call(tiny_dense) -> None:
    """Labels absent, of another width, not 0 and 1; too many columns; a queue shorter than the batch."""
    loss = make_loss(tiny_dense.train())
    column = features(tiny_dense)
    for labels, message in (
        (None, "label column of multi-hot lists; received none"),
        (LABELS[:, :2], r"labels must be \[4, 3\].*\(4, 2\)"),
        (-LABELS, "row 0 holds -1 for label 0"),
    ):
        with pytest.raises(ValueError, match=message):
            loss(column, labels)
    with pytest.raises(ValueError, match="received 3 text columns"):
        loss(column * 3, LABELS)
    with pytest.raises(ValueError, match="received 2 text columns"):
        make_loss(tiny_dense, use_keys=False, queue_size=0, alpha=0.5)(column * 2, LABELS)
    with pytest.raises(ValueError, match="a queue of 3 is shorter than the 4 keys"):
        make_loss(tiny_dense, queue_size=3)(column, LABELS)
    with pytest.raises(TypeError, match="aggregate"):
        NWSLoss(tiny_dense, SIMILARITY)

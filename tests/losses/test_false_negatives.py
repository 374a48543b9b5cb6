"""Which candidates are left out, against loops over texts; the losses against loops over what remains."""

from __future__ import annotations

import math
import random
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lexforge.common.text_identity import NO_TEXT, text_identity
from lexforge.losses import HCLLoss, InfoNCELoss, MoCoLoss, NeuralSparseLoss
from lexforge.losses.base import IDENTITY_KEY, RELEVANT_KEY, TEACHER_KEY
from lexforge.losses.false_negatives import BatchTexts, contained, repeated, token_identity

Row = tuple[str, ...]  # anchor, positive, negatives


def features_of(rows: list[Row], relevant: dict[str, set[str]] | None = None) -> list[dict]:
    """What our collators put beside the tokens, without tokens."""
    columns = [
        {IDENTITY_KEY: torch.tensor([text_identity(text) for text in column])}
        for column in zip(*rows, strict=True)
    ]
    if relevant is not None:
        lists = [sorted(text_identity(text) for text in relevant.get(row[0], ())) for row in rows]
        longest = max(map(len, lists))
        padded = [values + [NO_TEXT] * (longest - len(values)) for values in lists]
        columns[0][RELEVANT_KEY] = torch.tensor(padded, dtype=torch.int64).reshape(len(rows), longest)
    return columns


def known_answers(anchor: str, rows: list[Row], relevant: dict[str, set[str]]) -> set[str]:
    """The positives of all rows with this anchor, its own row's among them, and what is judged relevant."""
    return {row[1] for row in rows if row[0] == anchor} | relevant.get(anchor, set())


def kept_by_loop(rows: list[Row], relevant: dict[str, set[str]]) -> list[list[bool]]:
    """Candidate by candidate, on the texts themselves: all positives, then each column of negatives."""
    candidates = [row[column] for column in range(1, len(rows[0])) for row in rows]
    kept = []
    for own, (anchor, *_) in enumerate(rows):
        answers = known_answers(anchor, rows, relevant)
        seen: set[str] = set()
        line = []
        for number, text in enumerate(candidates):
            line.append(number == own or not (text in answers or text in seen))
            seen.add(text)
        kept.append(line)
    return kept


def random_rows(seed: int, columns: int = 4) -> tuple[list[Row], dict[str, set[str]]]:
    """Few texts, so that they repeat; some of them judged relevant."""
    generator = random.Random(seed)
    rows = [
        (f"q{generator.randrange(6)}", *(f"d{generator.randrange(12)}" for _ in range(columns - 1)))
        for _ in range(generator.randrange(1, 9))
    ]
    relevant = {f"q{number}": {f"d{generator.randrange(12)}" for _ in range(number)} for number in range(5)}
    return rows, relevant


@pytest.mark.parametrize("judged", [False, True])
def test_what_is_left_out_equals_a_loop_over_texts(judged: bool) -> None:
    """Own positive elsewhere, judged relevant, positive of the same anchor, repeated: each by its text."""
    for seed in range(40):
        rows, relevant = random_rows(seed)
        relevant = relevant if judged else {}
        texts = BatchTexts.of(features_of(rows, relevant if judged else None), gather=False)
        assert (~texts.left_out()).tolist() == kept_by_loop(rows, relevant), seed


def test_the_mirror_equals_a_loop_over_texts() -> None:
    """A positive picks its anchor: an anchor that it answers too, and a repeated one, is no negative."""
    for seed in range(20):
        rows, relevant = random_rows(seed)
        found = BatchTexts.of(features_of(rows, relevant), gather=False).mirrored()
        for own, row in enumerate(rows):
            for place, other in enumerate(rows):
                answers = row[1] in known_answers(other[0], rows, relevant)
                repeats = other[0] in [earlier[0] for earlier in rows[:place]]
                expected = place != own and (answers or repeats)
                assert found[own, place].item() == expected, (seed, own, place)


def test_rows_of_one_meaning_equal_a_loop_over_texts() -> None:
    """HCL contrasts both views with both, so the relation must hold in either direction."""
    for seed in range(20):
        rows, relevant = random_rows(seed, columns=2)
        found = BatchTexts.of(features_of(rows, relevant), gather=False).same_meaning()
        for own, (anchor, positive) in enumerate(rows):
            for place, (other_anchor, other_positive) in enumerate(rows):
                same = bool({anchor, positive} & {other_anchor, other_positive})
                same |= other_positive in known_answers(anchor, rows, relevant)
                same |= positive in known_answers(other_anchor, rows, relevant)
                assert found[own, place].item() == (place != own and same), (seed, own, place)


def vector(text: str, width: int = 6) -> torch.Tensor:
    """The embedding of a text: equal texts have equal ones, as they do without dropout."""
    generator = torch.Generator().manual_seed(text_identity(text) % 2**31)
    return torch.randn(width, generator=generator, dtype=torch.float64)


def embeddings_of(rows: list[Row]) -> list[torch.Tensor]:
    return [torch.stack([vector(text) for text in column]) for column in zip(*rows, strict=True)]


def info_nce_by_loop(rows: list[Row], relevant: dict[str, set[str]], temperature: float) -> list[float]:
    """The loss of each row, over the distinct texts that are its negatives."""
    kept = kept_by_loop(rows, relevant)
    texts = [row[column] for column in range(1, len(rows[0])) for row in rows]
    losses = []
    for own, row in enumerate(rows):
        query = vector(row[0])
        scores = [
            torch.cosine_similarity(query, vector(text), dim=0).item() / temperature
            for text, keep in zip(texts, kept[own], strict=True)
            if keep
        ]
        positive = torch.cosine_similarity(query, vector(row[1]), dim=0).item() / temperature
        losses.append(math.log(math.fsum(map(math.exp, scores))) - positive)
    return losses


def test_info_nce_equals_a_loop_over_what_remains(tiny_dense) -> None:
    """The whole way through the module, by default, with the share of negatives left out."""
    loss = InfoNCELoss(tiny_dense, 0.4)
    for seed in range(10):
        rows, relevant = random_rows(seed)
        value = loss.compute_loss(embeddings_of(rows), features_of(rows, relevant), None)
        losses = info_nce_by_loop(rows, relevant, 0.4)
        assert value.item() == pytest.approx(sum(losses) / len(losses), rel=1e-9), seed
        kept = kept_by_loop(rows, relevant)
        negatives = len(rows) * (len(kept[0]) - 1)
        share = sum(line.count(False) for line in kept) / negatives
        assert loss.metrics["candidates/left_out"].item() == pytest.approx(share), seed


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10**6), data=st.data())
def test_a_copy_of_a_row_changes_no_other_rows_loss(loaded_dense, seed: int, data) -> None:
    """A text that repeats counts once: the copy adds its own row, equal to the original's, and no more."""
    rows, relevant = random_rows(seed)
    copied = data.draw(st.integers(0, len(rows) - 1))
    loss = InfoNCELoss(loaded_dense, 0.4)  # which only reads its similarity

    def total(batch: list[Row]) -> float:
        return len(batch) * loss.compute_loss(embeddings_of(batch), features_of(batch, relevant), None).item()

    own = info_nce_by_loop(rows, relevant, 0.4)[copied]
    assert total([*rows, rows[copied]]) - total(rows) == pytest.approx(own, rel=1e-9, abs=1e-9)


def test_the_symmetric_loss_leaves_out_in_both_directions(tiny_dense) -> None:
    """Two rows with one positive: either way they are no negatives, and nothing is left to tell apart."""
    rows = [("q1", "d1"), ("q2", "d1")]
    loss = InfoNCELoss(tiny_dense, 0.4, symmetric=True)
    embeddings = [rows.requires_grad_() for rows in embeddings_of(rows)]
    value = loss.compute_loss(embeddings, features_of(rows), None)
    value.backward()
    assert value.item() == pytest.approx(0, abs=1e-12)
    assert not any(rows.grad.abs().max() > 1e-12 for rows in embeddings)


@pytest.mark.parametrize("estimator", ["hard", "easy"])
def test_hcl_equals_a_loop_over_what_remains(tiny_dense, estimator: str) -> None:
    """N, the mean and the sums are those of the negatives that remain; a row without any adds 0."""
    for rows in ([("a", "b"), ("c", "b"), ("d", "e"), ("f", "g")], [("a", "b"), ("b", "c")]):
        loss = HCLLoss(tiny_dense, 0.5, 0.05, 1.0, estimator)
        embeddings = [column.requires_grad_() for column in embeddings_of(rows)]
        value = loss.compute_loss(embeddings, features_of(rows), None)
        unit = lambda text: vector(text) / vector(text).norm()  # noqa: E731
        total = 0.0
        for own, row in enumerate(rows):
            others = [other for place, other in enumerate(rows) if place != own and not {*row} & {*other}]
            for view, partner in (row, row[::-1]):
                p = math.exp((unit(view) @ unit(partner)).item() / 0.5)
                n = [math.exp((unit(view) @ unit(text)).item() / 0.5) for other in others for text in other]
                if not n:
                    continue
                ng = sum(n)
                if estimator == "hard":
                    reweighted = sum(x * x for x in n) / (sum(n) / len(n))
                    ng = max((reweighted - 0.05 * len(n) * p) / 0.95, len(n) * math.exp(-1 / 0.5))
                total -= math.log(p / (p + ng))
        assert value.item() == pytest.approx(total / (2 * len(rows)), rel=1e-9, abs=1e-12)
        value.backward()
        assert all(column.grad.isfinite().all() for column in embeddings)


def test_moco_leaves_out_the_keys_of_its_own_positive_and_of_judged_documents(tiny_dense) -> None:
    """The queue remembers whose keys it holds, over batches and in its saved state."""
    loss = MoCoLoss(tiny_dense.train(), queue_size=8, momentum=0.5, temperature=0.3).double()
    first, second = [("q1", "d1"), ("q2", "d2")], [("q3", "d1"), ("q4", "d4")]
    loss.compute_loss(
        [column[:, :6].repeat(1, 6)[:, :32] for column in embeddings_of(first)], features_of(first), None
    )
    assert loss.queue.held_texts().tolist() == [text_identity("d1"), text_identity("d2")]
    assert "queue.texts" in loss.state_dict()
    embeddings = [column.repeat(1, 6)[:, :32] for column in embeddings_of(second)]
    unit = [torch.nn.functional.normalize(column, dim=1) for column in embeddings]
    held = loss.queue.contents()[0]
    value = loss.compute_loss(embeddings, features_of(second, {"q3": {"d1"}, "q4": {"d4", "d2"}}), None)
    expected = 0.0
    for row, kept in enumerate(([1], [0])):  # q3 drops its own d1; q4 drops d2, which is judged relevant
        scores = [(unit[0][row] @ unit[1][row]).item() / 0.3]
        scores += [(unit[0][row] @ held[place]).item() / 0.3 for place in kept]
        expected += math.log(math.fsum(map(math.exp, scores))) - scores[0]
    assert value.item() == pytest.approx(expected / 2, rel=1e-6)


def test_moco_leaves_out_the_keys_of_what_answers_the_same_anchor_in_another_row(tiny_dense) -> None:
    """The queue holds d2, which answers q1 by the second row: it is no negative of the first row either."""
    loss = MoCoLoss(tiny_dense.train(), queue_size=8, momentum=0.5, temperature=0.3).double()
    first, second = [("q5", "d2"), ("q6", "d6")], [("q1", "d1"), ("q1", "d2")]
    for rows in (first, second):
        embeddings = [column.repeat(1, 6)[:, :32] for column in embeddings_of(rows)]
        value = loss.compute_loss(embeddings, features_of(rows), None)
    assert loss.metrics["candidates/left_out"].item() == 1 / 2  # one of the two keys of the queue
    unit = [torch.nn.functional.normalize(column, dim=1) for column in embeddings]
    other = loss.queue.contents()[0][1]  # d6, the only key that answers neither row
    expected = 0.0
    for row in range(2):
        scores = [(unit[0][row] @ key).item() / 0.3 for key in (unit[1][row], other)]
        expected += math.log(math.fsum(map(math.exp, scores))) - scores[0]
    assert value.item() == pytest.approx(expected / 2, rel=1e-6)


def test_moco_counts_the_other_keys_of_the_batch_while_its_queue_is_empty(tiny_dense) -> None:
    """A row has three negatives there, and its own key is none: the share was out of four."""
    rows = [("q1", "d1"), ("q2", "d1"), ("q3", "d3"), ("q4", "d4")]
    loss = MoCoLoss(tiny_dense.train(), queue_size=8).double()
    embeddings = [column.repeat(1, 6)[:, :32] for column in embeddings_of(rows)]
    loss.compute_loss(embeddings, features_of(rows), None)
    kept = kept_by_loop(rows, {})
    assert [line.count(False) for line in kept] == [1, 1, 1, 1]
    assert loss.metrics["candidates/left_out"].item() == pytest.approx(4 / 12)


def sparse_loss(model, **changes) -> NeuralSparseLoss:
    weights = {
        "infonce_weight": 1.0,
        "self_reconstruction_weight": 0.0,
        "positive_activation_weight": 0.0,
        "flops_weight": 0.0,
        "minimum_activation_weight": 0.0,
        "distillation_weight": 0.0,
        "temperature": 0.4,
    }
    return NeuralSparseLoss(model, **{**weights, **changes})


def test_the_sparse_loss_leaves_out_what_info_nce_does(tiny_splade, tiny_dense) -> None:
    """One mask for all losses."""
    tiny_splade.similarity_fn_name = "cosine"
    rows, relevant = random_rows(3)
    loss = sparse_loss(tiny_splade)
    parts = loss.compute_loss(embeddings_of(rows), features_of(rows, relevant), None)
    expected = info_nce_by_loop(rows, relevant, 0.4)
    assert parts["infonce"].item() == pytest.approx(sum(expected) / len(rows), rel=1e-9)
    assert loss.metrics["candidates/left_out"] > 0


@pytest.mark.parametrize("listed", [False, True])
def test_distillation_compares_only_what_remains(tiny_splade, listed: bool) -> None:
    """Left-out candidates must count neither in the softmax nor in the z-scores: here they are cut off."""
    from lexforge.losses.functional import distillation

    tiny_splade.similarity_fn_name = "cosine"
    rows = [("q1", "d1", "d2", "d3"), ("q2", "d4", "d1", "d5")]
    relevant = {"q1": {"d1", "d2"}, "q2": {"d4", "d1"}}
    features = features_of(rows, relevant)
    loss = sparse_loss(tiny_splade, infonce_weight=0.0, distillation_weight=1.0)
    embeddings = embeddings_of(rows)
    teacher = torch.tensor([[0.9, 0.8, 0.1], [0.7, 0.6, 0.2]])
    cosine = lambda a, b: torch.cosine_similarity(vector(a), vector(b), dim=0)  # noqa: E731
    if listed:
        kept = [["d1", "d3"], ["d4", "d5"]]
        scores = teacher[:, [0, 2]].double()
        parts = loss.compute_loss(embeddings, features, teacher)
    else:
        for column, name in zip(features, zip(*rows, strict=True), strict=True):
            column[TEACHER_KEY] = torch.stack([vector("teacher " + text) for text in name])
        # of d1 d4 | d2 d1 | d3 d5: q1 leaves out d2 and the second d1, q2 both d1
        kept = [["d1", "d4", "d3", "d5"], ["d4", "d2", "d3", "d5"]]
        scores = torch.stack(
            [
                torch.stack([cosine("teacher " + row[0], "teacher " + text) for text in texts])
                for row, texts in zip(rows, kept, strict=True)
            ]
        )
        parts = loss.compute_loss(embeddings, features, None)
    student = torch.stack(
        [torch.stack([cosine(row[0], text) for text in texts]) for row, texts in zip(rows, kept, strict=True)]
    )
    torch.testing.assert_close(parts["distillation"], distillation(student, scores), rtol=1e-9, atol=1e-12)


def own_documents_by_loop(row: Row, rows: list[Row], relevant: dict[str, set[str]]) -> list[int]:
    """The columns that are compared within a row: the positive, then each new text that is no answer."""
    answers = known_answers(row[0], rows, relevant)
    negatives = [column for column in range(2, len(row)) if row[column] not in answers | set(row[2:column])]
    return [1, *negatives]


def cosine(query: str, document: str) -> float:
    return torch.cosine_similarity(vector(query), vector(document), dim=0).item()


def test_triplets_look_within_their_row(tiny_splade) -> None:
    """Another row's copy of a negative is not in this row's triplets: it must take none of them away."""
    tiny_splade.similarity_fn_name = "cosine"
    loss = sparse_loss(tiny_splade, infonce_weight=0.0, triplet_margin_weight=1.0, margin=2.0)
    for seed in range(12):
        rows, relevant = random_rows(seed)
        value = loss.compute_loss(embeddings_of(rows), features_of(rows, relevant), None)["triplet_margin"]
        hinges = [
            2.0 - cosine(row[0], row[1]) + cosine(row[0], row[column])
            for row in rows
            for column in own_documents_by_loop(row, rows, relevant)[1:]
        ]
        assert value.item() == pytest.approx(math.fsum(hinges) / (2 * len(rows)), rel=1e-9), seed


@pytest.mark.parametrize("seed", range(12))
def test_given_scores_are_compared_within_their_row(tiny_splade, seed: int) -> None:
    """A list is softmaxed for itself: a document of two rows stands in both lists, and twice in none."""
    tiny_splade.similarity_fn_name = "cosine"
    rows, relevant = random_rows(seed, columns=5)
    labels = torch.rand(len(rows), 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    student, teacher, margins, divergence = [], [], [], []
    for row, scores in zip(rows, labels.tolist(), strict=True):
        columns = own_documents_by_loop(row, rows, relevant)
        ours = [cosine(row[0], row[column]) for column in columns]
        theirs = [scores[column - 1] for column in columns]
        margins += [((ours[0] - s) - (theirs[0] - t)) ** 2 for s, t in zip(ours[1:], theirs[1:], strict=True)]
        if len(columns) < 2:
            continue  # nothing to compare
        student, teacher = student + ours, teacher + theirs
        p, q = (
            [math.exp(v / 3) / math.fsum(math.exp(w / 3) for w in side) for v in side]
            for side in (theirs, ours)
        )
        divergence.append(9 * math.fsum(a * math.log(a / b) for a, b in zip(p, q, strict=True)))
    loss = sparse_loss(tiny_splade, infonce_weight=0.0, distillation_weight=1.0, margin_mse_weight=1.0)
    parts = loss.compute_loss(embeddings_of(rows), features_of(rows, relevant), labels)
    expected = 0.0
    if divergence:
        z = [
            [(value - statistics.fmean(side)) / statistics.stdev(side) for value in side]
            for side in (student, teacher)
        ]
        squares = [(a - b) ** 2 for a, b in zip(*z, strict=True)]
        expected = 0.7 * statistics.fmean(divergence) + 0.3 * statistics.fmean(squares)
    assert parts["distillation"].item() == pytest.approx(expected, rel=1e-8, abs=1e-12)
    expected = statistics.fmean(margins) if margins else 0.0
    assert parts["margin_mse"].item() == pytest.approx(expected, rel=1e-8, abs=1e-12)


def test_plain_data_sets_are_compared_by_their_tokens(tiny_splade) -> None:
    """The stock collator carries no identity; equal texts are found by equal tokens, however padded."""
    tiny_splade.similarity_fn_name = "cosine"
    anchors, positives = ["sort a list", "parse the tree"], ["read a file", "read a file"]
    features = [tiny_splade.preprocess(column) for column in (anchors, positives)]
    loss = sparse_loss(tiny_splade.train())
    assert loss(features)["infonce"].item() == pytest.approx(0, abs=1e-6)
    assert loss.metrics["candidates/left_out"].item() == 1


def test_embeddings_alone_leave_out_nothing(tiny_dense) -> None:
    """Where another loss encodes, the texts are not known."""
    rows = [("q1", "d1"), ("q2", "d1")]
    loss = InfoNCELoss(tiny_dense, 0.4)
    assert loss.compute_loss_from_embeddings(embeddings_of(rows)).item() > 0
    assert loss.metrics == {}


def test_token_identities_ignore_padding_and_nothing_else() -> None:
    """Order, number and each id count; the side and the length of the padding do not."""
    ids = torch.tensor([[5, 6, 7, 0], [0, 5, 6, 7], [5, 6, 7, 9], [5, 7, 6, 0], [6, 6, 6, 0], [0, 0, 0, 0]])
    mask = torch.tensor([[1, 1, 1, 0], [0, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 1, 0], [0, 0, 0, 0]])
    found = token_identity(ids, mask).tolist()
    assert found[0] == found[1]
    assert len(set(found)) == 5


def test_token_identities_of_many_texts_differ() -> None:
    """A weak mix would collide among some ten thousand short sequences."""
    ids = torch.cartesian_prod(torch.arange(40), torch.arange(40), torch.arange(40))
    assert len(token_identity(ids, torch.ones_like(ids)).unique()) == 40**3


def test_text_identities() -> None:
    """Written down, since saved queues and rows hold them; equal in every process."""
    assert text_identity("") == -5426141060434712860  # b2sum -l 64 of nothing
    assert text_identity("서울") == text_identity("서울") != text_identity("서울 ")
    assert -(2**63) <= text_identity("a") < NO_TEXT


@given(
    st.lists(st.integers(-5, 5), max_size=8),
    st.lists(st.lists(st.integers(-5, 5), max_size=4), min_size=1, max_size=3),
)
def test_sets_and_repetitions_equal_python(values: list[int], sets: list[list[int]]) -> None:
    """Both stand on sorting, whose ends are easily off by one."""
    longest = max(map(len, sets))
    padded = [sorted(members) + [NO_TEXT] * (longest - len(members)) for members in sets]
    rows = torch.tensor(padded, dtype=torch.int64).reshape(len(sets), longest)
    numbers = torch.tensor(values, dtype=torch.int64)
    assert contained(numbers, rows).tolist() == [[value in members for value in values] for members in sets]
    assert repeated(numbers).tolist() == [value in values[:place] for place, value in enumerate(values)]

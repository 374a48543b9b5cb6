"""The diagnosis: the wrong setting produces each symptom, it is found, and the advice makes it go away."""

from __future__ import annotations

import json
import math
import random
import re
import runpy
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from datasets import Dataset
from scipy import sparse
from sentence_transformers import SentenceTransformer, SparseEncoder

from lexforge import data, models, report, runs, training
from lexforge.commands import report as command
from lexforge.evaluation import RetrievalEvaluator
from lexforge.losses import NeuralSparseLoss, penalty_weights, word_weights
from lexforge.models.structure import splade_decoders
from lexforge.report import Finding, findings_text
from lexforge.report.model_numbers import numbers_of_texts
from lexforge.report.symptoms import SYMPTOMS, flag_of
from lexforge.settings import EvaluationSettings, LossSettings

ROOT = Path(__file__).resolve().parents[2]
STOP_WORDS = "the of and in to is for with on that this are was by from".split()
LENGTH = 32
PLAIN = training.PRESETS["plain"].loss
# A model that learns to expand in the few steps of a test, so that each wrong setting has something to spoil.
SCRATCH = replace(training.PRESETS["lexforge-scratch"].loss, temperature=0.3)
V26 = replace(training.PRESETS["v26"].loss, distillation_weight=0.0, phases=(), stopword_penalty=1.0)


def invented_words(source: random.Random, count: int) -> list[str]:
    """Different words of two or three syllables that no stop word looks like."""
    found: dict[str, None] = {}
    while len(found) < count:
        syllables = source.choice((2, 3))
        letters = [source.choice("bdfgklmnprstvz") + source.choice("aeiou") for _ in range(syllables)]
        found["".join(letters)] = None
    return list(found)


def invented_pairs(count: int = 320, topics: int = 16) -> list[tuple[str, str]]:
    """Queries and documents of 16 topics: both have words of the topic, one rare word and stop words.

    Queries prefer words that documents of the topic use once, so training has something to learn.
    """
    source = random.Random(0)
    words = iter(invented_words(source, 12 * topics + 60))
    told = [[next(words) for _ in range(8)] for _ in range(topics)]
    asked = [[next(words) for _ in range(4)] for _ in range(topics)]
    rare = list(words)
    pairs = []
    for number in range(count):
        topic, name = number % topics, source.choice(rare)
        document = [*source.choices(told[topic], k=8), name, source.choice(asked[topic])]
        document += source.choices(STOP_WORDS, k=10)
        query = [*source.sample(asked[topic], 2), source.choice(told[topic]), name]
        query += source.choices(STOP_WORDS, k=2)
        source.shuffle(document)
        source.shuffle(query)
        pairs.append((" ".join(query), " ".join(document)))
    return pairs


@dataclass(frozen=True)
class Setting:
    """What a run of the tests is made of."""

    loss: LossSettings = SCRATCH
    start_share: float = 0.25
    steps: int = 30
    learning_rate: float = 3e-3
    head: float = 1.0  # factor of the decoder's weight and bias
    bias: float = 0.0  # added to the decoder's bias
    rows: int = 256
    eval_steps: int | None = None
    document_terms: int | None = None
    query_terms: int | None = None


HEALTHY = Setting()


@pytest.fixture(scope="module")
def pairs() -> list[tuple[str, str]]:
    return invented_pairs()


@pytest.fixture(scope="module")
def train(
    pairs: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Setting], Path]:
    """Setting -> a run directory as a recipe leaves it; equal settings are trained once."""
    folder = tmp_path_factory.mktemp("diagnosed")
    documents = [document for _, document in pairs]
    backbone = models.build_lexical_backbone(
        documents, folder / "backbone", vocab_size=600, hidden_size=64, max_seq_length=LENGTH
    )
    tokenizer = models.build_splade(backbone, device="cpu").tokenizer
    idf = data.corpus_idf(documents, tokenizer, LENGTH)
    stopword_ids = data.stopword_ids(tokenizer, "en")
    done: dict[Setting, Path] = {}

    def run(setting: Setting) -> Path:
        if setting in done:
            return done[setting]
        place, numbers = folder / f"run-{len(done)}", setting.loss
        watched = EvaluationSettings(setting.eval_steps)
        settings = training.TrainingSettings(
            steps=setting.steps,
            batch_size=16,
            gradient_accumulation_steps=1,
            learning_rate=setting.learning_rate,
            precision="fp32",
            logging_steps=2,
            seed=0,
        )
        config: dict[str, Any] = {"language": "en", "loss": asdict(numbers), "train": asdict(settings)}
        config["finish"] = {"start_share": setting.start_share}
        place.mkdir()
        runs.write_json(place / "config.json", config | {"evaluation": asdict(watched)})
        torch.manual_seed(0)
        model = models.build_splade(
            backbone, max_seq_length=LENGTH, similarity=numbers.similarity, device="cpu"
        )
        with torch.no_grad():
            for decoder in splade_decoders(model):
                decoder.weight.mul_(setting.head)
                decoder.bias.add_(setting.bias).mul_(setting.head)
        special = models.special_token_ids(tokenizer)
        penalties = penalty_weights(numbers, torch.from_numpy(idf), special, stopword_ids)
        words = word_weights(torch.from_numpy(idf), special, stopword_ids)
        loss = NeuralSparseLoss(model, penalty_weights=penalties, word_weights=words, **numbers.arguments())
        trainer = training.SpladeTrainer(
            model,
            loss,
            args=settings.arguments(place, save_strategy="no", disable_tqdm=True, **watched.arguments()),
            train_dataset=rows(pairs[: setting.rows]),
            eval_dataset=rows(pairs[256:]),
            ramp_fraction=numbers.ramp_fraction,
            start_share=setting.start_share,
            document_terms=setting.document_terms,
            query_terms=setting.query_terms,
        )
        trainer.train()
        lines = [json.dumps(line) + "\n" for line in trainer.state.log_history]
        (place / "log.jsonl").write_text("".join(lines), encoding="utf-8")
        report.record_symptoms(
            place,
            model,
            evaluator_of([query for query, _ in pairs[256:]], documents),
            idf=idf,
            stopword_ids=stopword_ids,
        )
        model.save_pretrained(str(place / "model"), create_model_card=False)
        done[setting] = place
        return place

    return run


def evaluator_of(queries: list[str], documents: list[str]) -> RetrievalEvaluator:
    """An evaluator of these texts, whatever answers what."""
    named = [
        {f"{kind}{place}": text for place, text in enumerate(texts)}
        for kind, texts in (("q", queries), ("d", documents))
    ]
    return RetrievalEvaluator(*named, {query: {"d0": 1} for query in named[0]}, latency_queries=0)


def rows(pairs: list[tuple[str, str]]) -> Dataset:
    return Dataset.from_list([{"anchor": query, "positive": document} for query, document in pairs])


def found(run: Path, name: str) -> Finding:
    """The finding of a run with a name."""
    return by_name(report.diagnose(run))[name]


def changed(setting: Setting, **numbers: Any) -> Setting:
    """The setting with other numbers of its loss."""
    return replace(setting, loss=replace(setting.loss, **numbers))


GREEDY = Setting(
    replace(PLAIN, positive_activation_weight=10.0, self_reconstruction_weight=4.0), start_share=0.0
)  # rewards every word of the positive, stop words included
FLAT = Setting(
    replace(V26, idf_alpha=0.0, flops_weight=0.2), start_share=0.0
)  # rare words pay as much as frequent ones
STRICT = Setting(replace(SCRATCH, flops_weight=3.0))
SILENT = Setting(
    replace(SCRATCH, flops_weight=20.0, ramp_fraction=0.0, minimum_activation_weight=0.0), start_share=0.0
)
OPEN = Setting(replace(SCRATCH, flops_weight=1e-5), 0.0, learning_rate=1.5e-3, bias=1.0)
WIDE = replace(OPEN, learning_rate=1e-3, bias=1.5)
LARGE = replace(OPEN, bias=3.0)
FEW = Setting(learning_rate=5e-3, steps=60, rows=16, eval_steps=10)
HOT = Setting(learning_rate=0.1)
COLD = Setting(replace(SCRATCH, temperature=0.02))
# symptom, the wrong setting, the part of the advice that names knob and direction, the advice followed; of a
# symptom the case comes first whose trainings others share
CASES = [
    (
        "stop_words",
        GREEDY,
        "--loss.positive-activation-weight (now 10) is above 2, lower it",
        changed(GREEDY, positive_activation_weight=0.0),
    ),
    (
        "stop_words",
        GREEDY,
        "set --loss.idf-alpha 4, --loss.stopword-penalty 15 and --loss.flops-weight 0.01",
        changed(GREEDY, idf_alpha=4.0, stopword_penalty=15.0, flops_weight=0.01),
    ),
    (
        "stop_words",
        changed(GREEDY, idf_alpha=4.0, stopword_penalty=1.0),
        "raise --loss.stopword-penalty (now 1) and --loss.flops-weight (now 0.0003)",
        changed(GREEDY, idf_alpha=4.0, stopword_penalty=15.0, flops_weight=0.01),
    ),
    (
        "everywhere",
        GREEDY,
        "--loss.positive-activation-weight (now 10) is above 2, lower it",
        changed(GREEDY, positive_activation_weight=0.0),
    ),
    ("everywhere", OPEN, "raise --loss.flops-weight (now 1e-05)", changed(OPEN, flops_weight=1.0)),
    ("rare_weight", FLAT, "lower --loss.flops-weight (now 0.2)", changed(FLAT, flops_weight=0.01)),
    ("rare_weight", FLAT, "raise --loss.idf-alpha (now 0)", changed(FLAT, idf_alpha=8.0)),
    ("own_recall", FLAT, "lower --loss.flops-weight (now 0.2)", changed(FLAT, flops_weight=0.01)),
    (
        "own_recall",
        FLAT,
        "raise --loss.own-activation-weight",
        changed(FLAT, own_activation_weight=5.0),
    ),
    ("expansion", replace(HEALTHY, start_share=0.95), "--finish.start-share (now 0.95)", HEALTHY),
    ("expansion", STRICT, "lower --loss.flops-weight (now 3)", changed(STRICT, flops_weight=0.05)),
    ("empty", SILENT, "lower --loss.flops-weight (now 20)", changed(SILENT, flops_weight=0.001)),
    ("empty", SILENT, "lengthen --loss.ramp-fraction (now 0)", changed(SILENT, ramp_fraction=1.0)),
    (
        "empty",
        SILENT,
        "raise --loss.minimum-activation-weight (now 0)",
        changed(SILENT, minimum_activation_weight=10.0),
    ),
    ("dense", WIDE, "raise --loss.flops-weight (now 1e-05)", changed(WIDE, flops_weight=0.3)),
    ("dense", WIDE, "or give --document-terms", replace(WIDE, document_terms=20)),
    (
        "query_density",
        OPEN,
        "raise --loss.query-flops-weight above --loss.flops-weight (now 1e-05)",
        changed(OPEN, query_flops_weight=1.0),
    ),
    ("query_density", OPEN, "or give --query-terms", replace(OPEN, document_terms=30, query_terms=8)),
    ("scale", LARGE, "raise --loss.temperature (now 0.3)", changed(LARGE, temperature=8.0)),
    ("scale", LARGE, "divide the weight and the bias of the decoder", replace(LARGE, head=0.1)),
    ("oscillation", HOT, "lower --learning-rate (now 0.1)", HEALTHY),
    ("oscillation", COLD, "raise --loss.temperature (now 0.02)", HEALTHY),
    ("overfitting", FEW, "more rows or fewer --steps", replace(FEW, rows=256, steps=30)),
]


def first_of_each_symptom() -> list[Any]:
    """The cases, of which the further cures of a symptom are slow."""
    seen: set[str] = set()
    cases = []
    for case in CASES:
        cases.append(pytest.param(*case, marks=[pytest.mark.slow] if case[0] in seen else []))
        seen.add(case[0])
    return cases


@pytest.mark.parametrize(("name", "sick", "advice", "cured"), first_of_each_symptom())
def test_each_symptom_comes_and_goes(
    train: Callable[[Setting], Path], name: str, sick: Setting, advice: str, cured: Setting
) -> None:
    """An alarm is worth nothing if the wrong setting does not set it off, or the advice does not end it."""
    before, after = found(train(sick), name), found(train(cured), name)
    assert before.ok is False, before
    assert advice in before.advice
    assert after.ok is True, after


def test_a_healthy_run_has_no_symptom(train: Callable[[Setting], Path]) -> None:
    """A default that sets off alarms would teach people to ignore them."""
    findings = report.diagnose(train(HEALTHY))
    assert list(by_name(findings)) == list(SYMPTOMS)
    assert [finding.symptom.name for finding in findings if finding.ok is False] == []
    # Nothing was evaluated on dev during this run, and the finding says how to have it.
    unknown = {finding.symptom.name: finding.advice for finding in findings if finding.ok is None}
    assert list(unknown) == ["overfitting"]
    assert "--eval-steps" in unknown["overfitting"]


def test_the_numbers_of_texts_by_hand() -> None:
    """Every threshold rests on these numbers, so they are worked out on paper once."""
    # Terms 0 and 1 are stop words. Text 1: own terms 0, 2, 3; text 2: own terms 2, 4; text 3 is empty.
    weights = [[1.0, 3.0, 0.0, 2.0, 0.0, 2.0], [0.0, 1.0, 4.0, 0.0, 0.0, 0.0], [0.0] * 6]
    own = [np.array([0, 2, 3]), np.array([2, 4]), np.array([5])]
    idf = np.array([0.1, 0.1, 1.0, 2.0, 3.0, 1.0])
    stop = np.array([True, True, False, False, False, False])
    numbers = numbers_of_texts(sparse.csr_array(np.array(weights)), own, idf, stop)
    assert numbers["texts"] == 3
    assert numbers["own_terms"] == pytest.approx((3 + 2 + 1) / 3)
    assert numbers["active"] == pytest.approx((4 + 2 + 0) / 3)
    assert numbers["empty"] == pytest.approx(1 / 3)
    assert numbers["stop_words_of_top"] == pytest.approx((2 / 4 + 1 / 2) / 2)  # the empty text has no term
    assert numbers["own_recall"] == pytest.approx((1 / 2 + 1 / 2 + 0) / 3)  # without stop words
    assert numbers["expansion"] == pytest.approx((2 / 4 + 1 / 2) / 2)
    # The rarer half of (0, 2, 3) is term 3, whose weight 2 is the mean of 1, 3, 2, 2; of (2, 4) it is the
    # lost term 4.
    assert numbers["rare_weight"] == pytest.approx((2 / 2 + 0 / 2.5) / 2)
    assert numbers["everywhere"] == 0.0  # no term is active in 90 % of the three texts
    twice = numbers_of_texts(sparse.csr_array(np.array(weights[:2])), own[:2], idf, stop)
    assert twice["everywhere"] == pytest.approx(2 / 6)
    # Of twelve active terms the two weakest, one of them a stop word, are not among the ten strongest.
    many, stop = np.array([[0.1, 9.0, 0.2, *[1.0] * 9]]), np.arange(12) < 2
    numbers = numbers_of_texts(sparse.csr_array(many), [np.array([1])], np.ones(12), stop)
    assert numbers["stop_words_of_top"] == pytest.approx(1 / 10)


CONFIG: dict[str, Any] = {
    "language": "en",
    "loss": asdict(replace(PLAIN, infonce_weight=2.0)),
    "train": {"batch_size": 16, "learning_rate": 1e-3},
    "evaluation": {"best_measure": None},
}


def lines_of(values: list[float], name: str = "loss") -> list[dict[str, float]]:
    return [{"step": 10 * step, name: value} for step, value in enumerate(values, start=1)]


def by_name(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.symptom.name: finding for finding in findings}


def diagnosed(
    folder: Path, config: dict[str, Any], log: list[dict[str, float]], **others: Any
) -> dict[str, Finding]:
    """The findings of a run with these settings and this log, and other files by their names."""
    files = {"config": config} | others
    for name, content in files.items():
        runs.write_json(folder / f"{name}.json", content)
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in log), encoding="utf-8")
    return by_name(report.diagnose(folder))


def test_the_jumps_of_the_loss_by_hand(tmp_path: Path) -> None:
    """The unit is what guessing costs; the first step down, in which a run learns most, does not count."""
    values = [9.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0]
    finding = diagnosed(tmp_path, CONFIG, lines_of(values))["oscillation"]
    differences = [1, -1, 1, -1, 1, -1]
    assert finding.number == pytest.approx(np.std(differences) / (2 * math.log(16)))
    assert finding.ok is False
    assert "lower --learning-rate (now 0.001)" in finding.advice
    few = diagnosed(tmp_path, CONFIG, lines_of(values[:7]))["oscillation"]
    assert few.ok is None
    assert "7 lines" in few.advice


def test_a_loss_that_is_no_number_is_a_symptom(tmp_path: Path) -> None:
    """A run that ended in NaN must not look as if nothing had been found."""
    lines = lines_of([1.0, 1.0, float("nan"), 1.0])
    finding = diagnosed(tmp_path, CONFIG, lines)["oscillation"]
    assert finding.ok is False
    assert "step 30" in finding.advice
    assert finding.value == "inf %"


def test_infonce_of_weight_0_is_the_reason_that_it_is_not_measured(tmp_path: Path) -> None:
    """The log has its value, and the page said that it has none."""
    config = {**CONFIG, "loss": {**CONFIG["loss"], "infonce_weight": 0.0}}
    finding = diagnosed(tmp_path, config, lines_of([1.0] * 9))["scale"]
    assert (finding.number, finding.advice) == (None, "InfoNCE has the weight 0")


@pytest.mark.parametrize(
    ("measure", "scores", "best", "lost"),
    [
        ("nDCG@10", [0.4, 0.5, 0.4], None, 0.2),
        ("nDCG@10", [0.4, 0.5, 0.6], None, 0.0),
        # The run ended with its best checkpoint.
        ("nDCG@10", [0.4, 0.5, 0.4], {"step": 20, "value": 0.5}, 0.0),
        ("spearman_cosine", [0.4, 0.5, 0.4], None, 0.2),
        ("spearman_dot", [0.4, 0.5, 0.4], None, 0.2),
        ("label_map", [0.4, 0.5, 0.4], None, 0.2),
    ],
)
def test_what_is_lost_on_dev_by_hand(
    tmp_path: Path, measure: str, scores: list[float], best: dict[str, float] | None, lost: float
) -> None:
    """The share of the best score that the model at the end has lost, by the measure of each recipe."""
    log = lines_of(scores, f"eval_dev_{measure}")
    metrics = {} if best is None else {"best_checkpoint": best}
    finding = diagnosed(tmp_path, CONFIG, log, metrics=metrics)["overfitting"]
    assert finding.number == pytest.approx(lost)
    assert finding.ok is (lost <= 0.05)


def test_the_start_by_hand_in_phases(tmp_path: Path) -> None:
    """The first phase has a weight of its own, by which the part of the log is multiplied."""
    loss = asdict(training.PRESETS["v26"].loss)
    log = lines_of([3 * 2.5 * math.log(16)], "loss/infonce")
    finding = diagnosed(tmp_path, CONFIG | {"loss": loss}, log)["scale"]
    assert finding.number == pytest.approx(3.0)
    assert finding.ok is False
    assert "raise the temperatures of the preset's phases (`LossSettings.phases` in Python)" in finding.advice


def test_advice_shows_the_settings_of_the_run(tmp_path: Path) -> None:
    """A direction alone does not tell how far to go; a setting that is not set has no value."""
    side = {"texts": 1, "active": 9.0, "empty": 0.0, "own_terms": 9.0, "everywhere": 0.0, "own_recall": 1.0}
    side |= {"stop_words_of_top": 0.9, "expansion": 0.5, "rare_weight": 0.1}
    sample = {"vocabulary_size": 99, "stop_words": 5, "queries": side, "documents": side}
    plain = diagnosed(tmp_path, CONFIG, [], diagnosis=sample)
    assert plain["rare_weight"].advice.startswith(
        f"lower --loss.flops-weight (now {PLAIN.flops_weight:g}), or raise --loss.idf-alpha,"
    )
    v26 = CONFIG | {"loss": asdict(training.PRESETS["v26"].loss)}
    aware = diagnosed(tmp_path, v26, [], diagnosis=sample)
    assert "raise --loss.stopword-penalty (now 15)" in aware["stop_words"].advice
    assert "or raise --loss.idf-alpha (now 4)" in aware["rare_weight"].advice
    metrics = {"wanted_terms": {"document": 128, "query": None}}  # of which the weight of FLOPS follows
    wanted = diagnosed(tmp_path, CONFIG | {"document_terms": 128}, [], diagnosis=sample, metrics=metrics)
    assert wanted["rare_weight"].advice.startswith("raise --document-terms (now 128), or raise --loss.idf-")
    few = SYMPTOMS["expansion"].advice_text(flag_of, terms_are_wanted=True)
    assert few == "raise --document-terms, or lower --finish.start-share"
    many = SYMPTOMS["dense"].advice_text(flag_of, terms_are_wanted=True)
    assert many == "lower --document-terms"
    none = diagnosed(tmp_path, CONFIG, [], diagnosis=sample | {"stop_words": 0})["stop_words"]
    assert none.ok is None
    assert "--language" in none.advice


@pytest.mark.parametrize(
    ("recipe", "advice"),
    [
        ("splade_v26", "or raise --loss.temperature (now 0.15)"),
        ("infonce_retrieval", "or raise --temperature (now 0.05)"),
        ("nws_multilabel", "or raise --temperature (now 0.1)"),
        ("cosent_sts", "or lower --scale (now 20)"),
    ],
)
def test_advice_names_the_flag_that_the_recipe_has(recipe: str, advice: str, tmp_path: Path) -> None:
    """The recipes write the numbers of their losses in different ways."""
    config = asdict(runpy.run_path(str(ROOT / "recipes" / f"{recipe}.py"))["Config"]())
    settings = {name: config[name] for name in ("loss", "scale") if name in config}
    log = [{"step": step, "loss": 9.0 * (step % 2)} for step in range(30)]
    assert diagnosed(tmp_path, settings, log)["oscillation"].advice.endswith(advice)


def test_advice_to_an_adaptation_names_flags_that_it_has(tmp_path: Path) -> None:
    """It named --loss.temperature and --eval-steps, which `lexforge adapt` refuses."""
    config = {"documents": "folder", "model": "lexical", "train": {"learning_rate": 1e-3}}
    log = [{"step": step, "loss": 9.0 * (step % 2)} for step in range(30)]
    findings = diagnosed(tmp_path, config, log)
    assert list(findings) == ["oscillation"]
    assert findings["oscillation"].advice == "lower --learning-rate (now 0.001)"


def test_binary_cross_entropy_has_no_temperature_to_raise(tmp_path: Path) -> None:
    """The recipe has the flag, and this loss does not read it."""
    recipe = runpy.run_path(str(ROOT / "recipes" / "nws_multilabel.py"))
    cfg = recipe["resolve"](replace(recipe["Config"](), loss=recipe["LossOptions"](name="bce")))
    config = {name: value for name, value in asdict(cfg).items() if name in ("loss", "head_learning_rate")}
    log = [{"step": step, "loss": 9.0 * (step % 2)} for step in range(30)]
    advice = diagnosed(tmp_path, config, log)["oscillation"].advice
    assert advice.endswith("or lower --head-learning-rate (now 0.1)")


def test_a_run_that_is_no_run_is_refused(tmp_path: Path) -> None:
    """One clear line, whatever stands in the folder."""
    with pytest.raises(FileNotFoundError, match="no run directory: it has neither"):
        report.diagnose(tmp_path)
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match="is not the JSON that a run writes"):
        report.diagnose(tmp_path)
    (tmp_path / "config.json").write_text('{"loss": {"flops_weight": 1}}', encoding="utf-8")
    (tmp_path / "diagnosis.json").write_text('{"queries": {}}', encoding="utf-8")
    with pytest.raises(ValueError, match="no run of this version wrote: KeyError"):
        report.diagnose(tmp_path)


def test_an_interrupted_run_is_diagnosed_by_its_log(tmp_path: Path) -> None:
    """It has no measured model yet, but its log has the losses."""
    findings = diagnosed(tmp_path, CONFIG, lines_of([5.0, 4.0, 3.0, 2.0, 1.5, 1.2, 1.1, 1.0]))
    assert findings["oscillation"].ok is True
    missing = [name for name, finding in findings.items() if finding.ok is None]
    assert "stop_words" in missing
    assert "has no diagnosis.json yet" in findings["stop_words"].advice


def test_a_dense_run_is_diagnosed_by_its_log(tmp_path: Path) -> None:
    """It has no terms, so nothing is said about them."""
    loss = {"name": "infonce", "temperature": 0.05}
    assert list(diagnosed(tmp_path, CONFIG | {"loss": loss}, [])) == ["oscillation", "overfitting"]


def test_a_sample_of_another_vocabulary_or_model_is_refused(
    tiny_splade: SparseEncoder, tiny_dense: SentenceTransformer, tmp_path: Path
) -> None:
    """It must end in one line, not in a mean over the wrong terms."""
    evaluator = evaluator_of(["a"], ["a"])
    with pytest.raises(ValueError, match="idf must be"):
        report.record_symptoms(tmp_path, tiny_splade, evaluator, idf=np.ones(3), stopword_ids=[])
    with pytest.raises(TypeError, match="only a sparse model has terms; received SentenceTransformer"):
        report.record_symptoms(tmp_path, cast(Any, tiny_dense), evaluator, idf=np.ones(3), stopword_ids=[])


def test_the_text_of_findings_puts_the_sick_ones_first() -> None:
    """At the end of a run people read the first line."""
    text = findings_text(
        [
            Finding(SYMPTOMS["empty"], 0.0, ""),
            Finding(SYMPTOMS["expansion"], None, "there is none"),
            Finding(SYMPTOMS["dense"], 0.5, "turn it up"),
        ]
    )
    assert text.splitlines() == [
        f"! {SYMPTOMS['dense'].text}: 50 % (healthy: at most 25 %): turn it up",
        "? not measured: expansion, because there is none",
        "healthy in 1 of 3 respects: empty 0 %",
    ]


def test_the_command_prints_and_shows_what_is_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A crashed run needs a diagnosis most, and a symptom without a number must not break the page."""
    diagnosed(tmp_path, CONFIG, lines_of([9.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0]))
    command.main(command.Config(tmp_path))
    printed = capsys.readouterr().out
    assert f"! {SYMPTOMS['oscillation'].text}: 18 % (healthy: at most 15 %): lower" in printed
    assert "? not measured: stop_words, " in printed
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    shown = page[page.index('id="diagnosis"') :]
    assert shown.index("jumps of the loss") < shown.index("stop words among")
    assert "lower --learning-rate (now 0.001)" in shown


def test_the_documentation_shows_the_table() -> None:
    """Advice that stands in two places differs after the next change; the page of the docs is compared."""
    page = (ROOT / "docs" / "diagnosis.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| (`\w+`) \| (.+) \| (.+) \| (.+) \| (.+) \| (.+) \|$", page, re.MULTILINE)
    shown = [(name, text, limit, change) for name, text, limit, _healthy, _sick, change in table]

    def flag(place: str) -> str:
        return f"`{flag_of(place)}`"

    expected = [
        (f"`{name}`", symptom.text, symptom.limit_text, symptom.advice_text(flag))
        for name, symptom in SYMPTOMS.items()
    ]
    assert shown == expected


def test_advice_names_settings_of_the_recipe() -> None:
    """A flag that does not exist ends in an error, after hours of training."""
    config = asdict(runpy.run_path(str(ROOT / "recipes" / "splade_v26.py"))["Config"]())
    for symptom in SYMPTOMS.values():
        texts = (symptom.advice, *(symptom.where_terms_are_wanted or ()))
        for place in re.findall(r"\{(.*?)\}", "".join(texts)):
            value: Any = config
            for key in place.split("."):
                assert key in value, f"{symptom.name} names {place}"
                value = value[key]

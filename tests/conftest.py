"""Models small enough for every test, built from a config: no download."""

from __future__ import annotations

import copy
import gc
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from warm_processes import WarmProcesses

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

WORDS = (
    "a an and the of to in is for with sort list array search index query document vector sparse dense token "
    "model train loss batch python file read write open close path string number count sum mean max min map "
    "tree graph node edge parse build save load cache hash key value error raise return yield class function "
    "한국 서울 검색 문서 단어 질문 대답 ##s ##ing ##ed ##er 어 은 는 이 가"
).split()
frozen_modules = 0  # how many were loaded when their objects were last left out of the search for garbage
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def pytest_configure(config: pytest.Config) -> None:
    """Give the tests a cache of their own, so that none writes to the user's or depends on it."""
    if not hasattr(config, "workerinput"):  # the workers of pytest-xdist inherit it
        cache = tempfile.TemporaryDirectory(prefix="lexforge-tests-")
        config.add_cleanup(cache.cleanup)
        os.environ["XDG_CACHE_HOME"] = os.environ["LEXFORGE_TESTS_FOLDER"] = cache.name


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files beside this one, whose tests are long: at the end one process would wait."""
    items.sort(key=lambda item: item.path.parent != Path(__file__).parent)


def pytest_collection_finish() -> None:
    """Load what looks for all objects of one type when it is loaded."""
    import hypothesis  # noqa: F401 - it looks for what refers to generators of numbers


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Give a test one thread of PyTorch, except where threads are its subject: models of a few thousand
    weights gain nothing by more, and the processes of the tests share the cores.
    """
    if torch := sys.modules.get("torch"):
        with_threads = "kernels" in item.path.parts
        torch.set_num_threads(len(os.sched_getaffinity(0)) if with_threads else 1)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Leave what is loaded by now out of every search for garbage, which took a third of some tests' time."""
    global frozen_modules
    if len(sys.modules) > frozen_modules + 50:
        gc.collect()
        gc.freeze()
        frozen_modules = len(sys.modules)


def pytest_unconfigure() -> None:
    """Let Python clear all that it loaded when it ends."""
    gc.unfreeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--head-backend`: what a processor with other products takes can be tested on this one."""
    parser.addoption(
        "--head-backend",
        choices=["measured", "float32", "bfloat16", "int8"],
        default="measured",
        help="how the SPLADE head multiplies float32 inputs, also in processes that a test starts",
    )


def without_card(save: Callable[..., None]) -> Callable[..., None]:
    """What saves a checkpoint of sentence-transformers, without the card of its model."""
    from sentence_transformers.base.model import BaseModel

    def run(*arguments: Any, **options: Any) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(BaseModel, "_create_model_card", lambda *_, **__: None)
            save(*arguments, **options)

    return run


@pytest.fixture(scope="session", autouse=True)
def short_trainings() -> Iterator[None]:
    """Save what hundreds of short trainings repeat. Files wait for the disk, which only a power cut would
    show. A card is made for each checkpoint, and its template compiled for each model that is saved.
    accelerate looks for garbage on each device, and sentence-transformers reads for each trainer and model
    which packages there are. Bokeh looks in all classes of a part of a chart for each of its values.
    """
    from accelerate.utils import memory
    from jinja2 import Environment

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Environment, "compile", cache(Environment.compile))
        patch.setattr(memory, "clear_device_cache", lambda garbage_collection=False: None)
        patch.setattr(os, "fsync", lambda file: None)
        # Tests that have not loaded them need not do so for this.
        if packages := sys.modules.get("sentence_transformers.util.environment"):
            patch.setattr(packages, "check_package_availability", cache(packages.check_package_availability))
        if trainers := sys.modules.get("sentence_transformers.base.trainer"):
            patch.setattr(trainers.BaseTrainer, "_save", without_card(trainers.BaseTrainer._save))
        if parts := sys.modules.get("bokeh.core.has_props"):
            overridden = parts.HasProps._overridden_defaults.__func__
            patch.setattr(parts.HasProps, "_overridden_defaults", classmethod(cache(overridden)))
            patch.setattr(parts.HasProps, "themed_values", lambda self: vars(self).get("__themed_values__"))
        yield


@pytest.fixture(scope="session", autouse=True)
def chosen_head_backend(pytestconfig: pytest.Config) -> Iterator[None]:
    """Ask the head for the chosen backend; "measured" leaves the choice to the head, as for a user."""
    chosen = pytestconfig.getoption("--head-backend")
    if chosen == "measured":
        yield
        return
    from lexforge.kernels.splade_head.choice import VARIABLE
    from lexforge.kernels.splade_head.screens import SCREENS, is_exact

    if chosen in SCREENS and not is_exact(SCREENS[chosen], 64):
        pytest.exit(
            f"this processor does not sum products of {chosen} exactly: nothing to test", returncode=0
        )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, chosen)
        yield


def write_tiny_checkpoint(folder: Path, *, hidden_size: int = 32, layers: int = 2, seed: int = 0) -> Path:
    """Save a random `BertForMaskedLM` of a few thousand weights and its tokenizer; returns the folder."""
    import torch
    from transformers import BertConfig, BertForMaskedLM, BertTokenizerFast

    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = folder / "vocab.txt"
    tokens = dict.fromkeys([*SPECIAL, *WORDS, *"abcdefghijklmnopqrstuvwxyz"])  # each once
    vocabulary.write_text("\n".join(tokens) + "\n", encoding="utf-8")
    tokenizer = BertTokenizerFast(vocab=str(vocabulary), do_lower_case=True, strip_accents=False)
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=2 * hidden_size,
        max_position_embeddings=64,
        initializer_range=0.2,
    )
    BertForMaskedLM(config).save_pretrained(folder)
    tokenizer.model_max_length = 64
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved masked language model with its tokenizer (`AutoModelForMaskedLM` loads it)."""
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny-mlm"))


@pytest.fixture(scope="session")
def tiny_m3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random XLM-R in the layout of BAAI/bge-m3: a dense encoder with its two other heads beside it."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
    from transformers import XLMRobertaConfig, XLMRobertaModel, XLMRobertaTokenizerFast

    folder = tmp_path_factory.mktemp("tiny-m3")
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    # Words that begin with a space, and letters for the rest, by the log probability of each.
    pieces = [f"\u2581{word}" for word in dict.fromkeys(WORDS) if not word.startswith("##")]
    pieces += ["\u2581", *"abcdefghijklmnopqrstuvwxyz", "<mask>"]
    vocabulary = [(token, 0.0) for token in special] + [(token, -len(special) - 1.0) for token in pieces]
    tokenizer = XLMRobertaTokenizerFast(vocab=vocabulary, model_max_length=32)
    torch.manual_seed(0)
    config = XLMRobertaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=34,
        type_vocab_size=1,
        initializer_range=0.2,
    )
    XLMRobertaModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    modules = [Transformer(str(folder)), Pooling(32, pooling_mode="cls"), Normalize()]
    SentenceTransformer(modules=modules, device="cpu").save_pretrained(str(folder), create_model_card=False)
    heads = {"sparse_linear.pt": 1, "colbert_linear.pt": 16}  # weights of about .2, as BGE-M3 gives tokens
    for file, width in heads.items():
        torch.save(
            {"weight": 0.04 * torch.randn(width, 32), "bias": torch.full((width,), 0.2)}, folder / file
        )
    return folder


@pytest.fixture(scope="session")
def loaded_splade(tiny_checkpoint: Path):
    """What `tiny_splade` and `fresh` copy, which takes a fifth of the time of loading."""
    from sentence_transformers import SparseEncoder
    from sentence_transformers.sparse_encoder.modules import SpladePooling, Transformer

    transformer = Transformer(str(tiny_checkpoint), transformer_task="fill-mask", max_seq_length=32)
    return SparseEncoder(modules=[transformer, SpladePooling("max")], device="cpu")


@pytest.fixture
def tiny_splade(loaded_splade):
    """A fresh plain `SparseEncoder` (no fused head) over the tiny checkpoint."""
    return copy.deepcopy(loaded_splade)


@pytest.fixture(scope="session")
def loaded_dense(tiny_checkpoint: Path):
    """What `tiny_dense` copies."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    transformer = Transformer(str(tiny_checkpoint), max_seq_length=32)
    return SentenceTransformer(
        modules=[transformer, Pooling(transformer.get_embedding_dimension())], device="cpu"
    )


@pytest.fixture
def tiny_dense(loaded_dense):
    """A fresh dense `SentenceTransformer` with mean pooling over the tiny checkpoint."""
    return copy.deepcopy(loaded_dense)


@pytest.fixture(scope="session")
def shared_folder() -> Path:
    """Real data and models beside the checkout; a test that asks for it skips where it is missing."""
    folder = Path(__file__).resolve().parents[2] / "shared"
    if not (folder / "data").is_dir():
        pytest.skip("reads the published data sets in ../shared/data, which are no part of the repository")
    return folder


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmProcesses]:
    """Runs scripts in processes that need not import torch."""
    folder = Path(os.environ["LEXFORGE_TESTS_FOLDER"])  # of all workers; a short path, as sockets need it
    processes = WarmProcesses(folder, tmp_path_factory.mktemp("warm") / "log.txt")
    yield processes
    processes.close()


@pytest.fixture(scope="session")
def run_script() -> Callable[..., None]:
    """Run a Python file in a process of its own, or on several gloo ranks; it must end well.

    `launcher` holds the words that start the ranks, if not torchrun does.
    """

    def run(
        script: Path,
        *arguments: object,
        ranks: int = 1,
        timeout: float = 280,
        launcher: Sequence[str] = (),
    ) -> None:
        torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--standalone"]
        threads = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        finished = subprocess.run(
            [
                sys.executable,
                *(launcher or (torchrun if ranks > 1 else ())),
                str(script),
                *map(str, arguments),
            ],
            env={**os.environ, **threads},
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        assert finished.returncode == 0, finished.stderr[-4000:]

    return run


TRAINED = "list array search index query document vector sparse token model train file graph tree".split()


@pytest.fixture(scope="session")
def training_rows() -> list[dict[str, str]]:
    """Twelve rows of a query, a positive and a hard negative."""
    return [
        {"anchor": f"{a} {b}", "positive": f"the {a} of a {b} {c}", "negative_1": f"{c} is not {a}"}
        for a, b, c in zip(TRAINED, TRAINED[1:], TRAINED[2:], strict=False)
    ]


@pytest.fixture(scope="session")
def make_trainer(training_rows: list[dict[str, str]]) -> Callable[..., Any]:
    """Model, folder -> a trainer of V26 with every term, six steps, a checkpoint every second."""

    import torch
    from datasets import Dataset
    from small_runs import RandomTeacher

    from lexforge.losses import NeuralSparseLoss
    from lexforge.settings import V26
    from lexforge.training import SpladeTrainer, TrainingSettings

    def make(model: Any, folder: Path, **others: Any) -> Any:
        model.similarity_fn_name = V26.loss.similarity
        loss = NeuralSparseLoss(
            model,
            penalty_weights=torch.linspace(0.1, 3, len(model.tokenizer)),
            special_token_ids=model.tokenizer.all_special_ids,
            **V26.loss.arguments(),
        )
        settings = TrainingSettings(
            steps=6,
            batch_size=4,
            gradient_accumulation_steps=others.pop("gradient_accumulation_steps", 1),
            learning_rate=1e-3,
            precision="fp32",
            save_steps=2,
            save_total_limit=None,
            logging_steps=1,
        )
        given = {"train_dataset": Dataset.from_list(training_rows), "phases": V26.loss.phases} | others
        arguments = settings.arguments(folder, **{"disable_tqdm": True} | given.pop("arguments", {}))
        return SpladeTrainer(model, loss, args=arguments, teacher=RandomTeacher(), **given)

    return make


@pytest.fixture(scope="session")
def fresh(loaded_splade) -> Callable[[], Any]:
    """Makes the same encoder again and again."""
    return partial(copy.deepcopy, loaded_splade)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the client would send is written below this folder; a call with other arguments fails."""
    from huggingface_hub import HfApi

    folder = tmp_path / "hub"

    def create_repo(
        self: Any,
        repo_id: str,
        *,
        private: bool | None,
        exist_ok: bool,
        token: Any = None,
        repo_type: Any = None,
    ) -> SimpleNamespace:
        (folder / repo_id).mkdir(parents=True, exist_ok=exist_ok)
        (folder / f"{repo_id}.visibility").write_text(f"private={private}")
        return SimpleNamespace(repo_id=repo_id)

    def upload_folder(
        self: Any,
        *,
        repo_id: str,
        folder_path: str,
        commit_message: str,
        commit_description: Any,
        create_pr: bool,
        revision: Any,
    ) -> SimpleNamespace:
        shutil.copytree(folder_path, folder / repo_id, dirs_exist_ok=True)
        return SimpleNamespace(commit_url=f"https://hub/{repo_id}")

    monkeypatch.setattr(HfApi, "create_repo", create_repo)
    monkeypatch.setattr(HfApi, "upload_folder", upload_folder)
    return folder


@pytest.fixture(scope="module")
def on_ranks(
    request: pytest.FixtureRequest,
    run_script: Callable[..., None],
    warm: WarmProcesses,
    tiny_checkpoint: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[..., list[Any]]:
    """A function that calls one of the test file, by its name, on so many ranks.

    It returns the results by rank. With the words of a launcher that one starts the ranks.
    """

    script = Path(__file__).parent / "distributed" / "ranks.py"

    @cache
    def run(function: str, ranks: int = 2, launcher: Sequence[str] = ()) -> list[Any]:
        folder = tmp_path_factory.mktemp("ranks")
        arguments = (request.path, function, tiny_checkpoint, folder)
        if launcher:
            run_script(script, *arguments, launcher=launcher, timeout=800)
        else:
            ends = warm.run(script, list(map(str, arguments)), ranks=ranks)
            assert ends == [0] * ranks, warm.log.read_text()[-4000:]
        import torch

        return torch.load(folder / "results.pt")

    return run


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Headless Chromium with its driver; both are packages of the operating system."""
    pytest.importorskip("selenium", reason="selenium is not installed")
    chromium = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
    driver = shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("no Chromium with its driver (Debian: apt-get install chromium chromium-driver)")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1400,1000"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield opened
    opened.quit()

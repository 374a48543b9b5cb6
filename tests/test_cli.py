"""The command `lexforge`: what it finds, how it fails, and that scripts and recipes are the same code."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import tyro

from lexforge import __version__, cli
from lexforge.commands import recipe, search, train
from lexforge.settings import PresetName
from lexforge.training import PRESETS

ROOT = Path(__file__).resolve().parents[1]
WITH_SETTINGS = [name for name in cli.COMMANDS if name != "train"]


def ended(*words: str) -> str | int | None:
    """What `lexforge WORDS` ends with: a message, or its exit status."""
    with pytest.raises(SystemExit) as end:
        cli.main(words)
    return end.value.code


def test_help_lists_every_command_and_loads_next_to_nothing() -> None:
    """The first command of a new user must answer at once; tyro, numpy and torch take seconds to load."""
    code = (
        "import sys; from lexforge import cli; cli.main(['--help']); before = len(sys.modules)\n"
        "slow = {'tyro', 'numpy', 'torch', 'lexforge.commands.train'} & set(sys.modules)\n"
        "assert not slow, slow\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in cli.COMMANDS:
        assert f"\n  {name} " in done.stdout


# Prints the help of each command of its arguments, and which slow packages are loaded by then.
HELPS = """
import contextlib, io, json, sys
from lexforge import cli
slow = {"torch", "transformers", "datasets", "numba", "faiss", "sklearn"}
for command in sys.argv[1:]:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            cli.main([*command.split(), "--help"])
        except SystemExit as end:
            assert not end.code
    print(json.dumps([command, out.getvalue(), sorted(slow & set(sys.modules))]))
"""


@pytest.fixture(scope="module")
def helps() -> dict[str, str]:
    """Command -> its help; that of `adapt` took seven seconds, most of them the loading of torch."""
    command = [sys.executable, "-c", HELPS, *cli.COMMANDS, "train cosent_sts"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert not [(name, loaded) for name, _, loaded in lines if loaded]
    return {name: text for name, text, _ in lines}


@pytest.mark.parametrize(("words", "steps"), [([], 200), (["--model", "lexical"], 300)])
def test_the_help_of_adapt_shows_the_steps_that_it_would_take(
    words: list[str], steps: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """They follow from the model, as those of a recipe do, and what must be given stays so."""
    assert ended("adapt", *words, "--help") == 0
    text = " ".join(re.sub("[│─]", " ", capsys.readouterr().out).split())
    assert f"None trains for `epochs` instead. (default: {steps})" in text
    assert text.count("(required)") == (2 if words else 3)
    assert ended("adapt", *words) == 2
    assert "--output" in capsys.readouterr().err


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    """It is the first thing that a bug report asks for."""
    cli.main(["--version"])
    assert capsys.readouterr().out == f"lexforge {__version__}\n"


@pytest.mark.parametrize("name", WITH_SETTINGS)
def test_each_command_has_settings_and_an_example_of_itself(name: str, helps: dict[str, str]) -> None:
    """A command without its module would be found by its first user. Its help loads nothing slow."""
    assert helps[name].startswith(f"usage: lexforge {name} ")
    assert f"\n    lexforge {name} " in helps[name]
    assert "docs/" not in helps[name], "a user of the wheel has no such folder"


def test_the_script_is_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A copy of the settings or of the work would drift apart from the command."""
    script = str(ROOT / "scripts" / "evaluate_retrieval.py")
    monkeypatch.setattr(sys, "argv", [script, "--help"])
    with pytest.raises(SystemExit):
        runpy.run_path(script, run_name="__main__")
    by_script = capsys.readouterr().out
    assert ended("evaluate", "--help") == 0
    assert by_script == capsys.readouterr().out


def test_words_that_are_no_command_are_answered_with_those_there_are() -> None:
    """A misspelt word is one line, and no traceback."""
    assert str(ended("trian")).startswith("error: lexforge has no command 'trian'; its commands are train, ")
    assert "export vectors" in str(ended("export"))
    assert "export model" in str(ended("export", "onnx"))
    assert str(ended()).startswith("usage: lexforge COMMAND")


def test_a_mistake_is_one_line_and_debug_shows_its_place(tmp_path: Path) -> None:
    """As for recipes and scripts."""
    words = ("evaluate", "--model", "m", "--data", str(tmp_path / "nowhere"))
    message = str(ended(*words))
    assert message.startswith("error: ")
    assert "nowhere" in message
    with pytest.raises(FileNotFoundError, match="nowhere"):
        cli.main([*words, "--debug"])


def test_a_recipe_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """What a user copies must be what `lexforge train` runs."""
    cli.main(["recipe", "infonce_retrieval"])
    assert capsys.readouterr().out == (ROOT / "recipes" / "infonce_retrieval.py").read_text(encoding="utf-8")
    cli.main(["recipe", "accelerate/fsdp.yaml"])
    assert "fsdp" in capsys.readouterr().out
    cli.main(["recipe"])
    listed = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert [name for name, _ in listed] == list(recipe.recipe_files())
    assert dict(listed)["splade_v26"].startswith("Train a SPLADE retriever")
    assert {path.stem for path in (ROOT / "recipes").glob("*.py")} <= set(recipe.recipe_files())
    assert str(ended("recipe", "nope")).startswith(
        "error: there is no recipe 'nope'; the names are cosent_sts,"
    )


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of recipes with one that prints its words."""
    (tmp_path / "accelerate").mkdir()
    (tmp_path / "accelerate" / "fsdp.yaml").write_text("# Shards.\n")
    text = '"""A toy."""\nimport sys\nif __name__ == "__main__":\n    print(sys.argv)\n'
    for name in ("splade_v26", "toy"):
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.setattr(recipe, "recipe_folder", lambda: tmp_path)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    return tmp_path


def test_train_runs_the_named_recipe_with_its_words(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The recipe reads `sys.argv` as if its file had been started; without a name it is splade_v26."""
    before = list(sys.argv)
    cli.main(["train", "toy", "--steps", "3"])
    out, err = capsys.readouterr()
    assert out == f"{[str(toy / 'toy.py'), '--steps', '3']}\n"
    assert err == (
        "This trains in one process. On several devices: accelerate launch -m lexforge train toy --steps 3\n"
    )
    cli.main(["train", "--data", "a b"])
    out, err = capsys.readouterr()
    assert out == f"{[str(toy / 'splade_v26.py'), '--data', 'a b']}\n"
    assert err.endswith("accelerate launch -m lexforge train --data 'a b'\n")
    assert sys.argv == before


def test_train_is_silent_about_devices_where_a_launcher_started_it(
    toy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each rank would repeat what its user has done already."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    cli.main(["train", "toy"])
    assert capsys.readouterr().err == ""


def test_train_refuses_what_is_no_recipe(toy: Path) -> None:
    """A configuration for accelerate is printed by `lexforge recipe`, and trains nothing."""
    names = "splade_v26, toy (--debug"
    for wrong in ("nope", "accelerate/fsdp.yaml"):
        assert f"error: there is no recipe {wrong!r}; the names are {names}" in str(ended("train", wrong))
    with pytest.raises(ValueError, match="there is no recipe 'nope'"):
        cli.main(["train", "nope", "--debug"])


@pytest.mark.parametrize("name", ["one_gpu", "multi_gpu", "multi_node", "fsdp"])
def test_a_configuration_names_no_file_of_a_checkout(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A user of the wheel has the file that `lexforge recipe` printed, and no folder `recipes/`."""
    cli.main(["recipe", f"accelerate/{name}.yaml"])
    text = capsys.readouterr().out
    assert f"--config_file {name}.yaml" in text
    assert "-m lexforge train" in text
    assert "recipes/" not in text


@pytest.mark.parametrize("words", [["train"], ["train", "cosent_sts"]])
def test_train_calls_itself_by_its_command(
    words: list[str], helps: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A recipe names its file in its usage and its examples, which a user of the wheel has not."""
    command, text = " ".join(["lexforge", *words]), helps[" ".join(words)]
    assert f"\nusage: {command} [-h]" in text
    assert f"accelerate launch -m {command}" in text
    assert f"without a name it is {train.RECIPE}" in text
    assert "recipes/" not in text
    assert "docs/" not in text
    assert ended(*words, "--bogus") == 2
    assert f"run {command} --help" in "".join(capsys.readouterr())
    if words == ["train"]:
        assert ended(*words, "--preset", "v27") == 2
        assert f"\n{command}: error: argument --preset" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "preset"),
    [([], "lexforge-scratch"), (["--model", "some/model"], "lexforge"), (["--preset=v22"], "v22")],
)
def test_help_shows_the_numbers_of_the_preset_that_the_run_would_take(
    words: list[str], preset: PresetName, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pretrained model takes other numbers than the lexical backbone, and the help says how to see them."""
    assert ended("train", *words, "--help") == 0
    text = " ".join(re.sub("[│─]", " ", capsys.readouterr().out).split())
    chosen = PRESETS[preset]
    train = chosen.train if "some/model" in words else chosen.training_from_scratch()
    numbers: dict[str, float | None] = {
        "--loss.temperature": chosen.loss.temperature,
        "--loss.infonce-weight": chosen.loss.infonce_weight,
        "--loss.distillation-weight": chosen.loss.distillation_weight,
        "--start.idf-bias": chosen.start.idf_bias,
        "--finish.start-share": chosen.finish.start_share,
        "--negatives-per-row": chosen.data.negatives_per_row,
        "--batch-size": train.batch_size,
    }
    numbers |= {"--learning-rate": train.learning_rate, "--steps": train.steps}
    for flag, number in numbers.items():
        default = re.split(rf"{flag} \S*(?:INT|FLOAT) ", text)[1].partition("(default: ")[2].partition(")")[0]
        # The files of a model that is not there do not tell its width, from which the learning rate follows.
        known = "some/model" not in words or flag != "--learning-rate"
        assert (float(default) == number) if known else (default == "None"), flag
    assert f"(default: {preset})" in text


def test_the_word_none_is_a_query() -> None:
    """It was read as no query, so the command waited for lines."""
    assert tyro.cli(search.Config, args=["index", "None"]).query == "None"
    assert tyro.cli(search.Config, args=["index"]).query is None

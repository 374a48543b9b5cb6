"""The command `lexforge`: its first words choose a command, and only that command's module is imported."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

# The words of a command -> what it does. Its module is in `lexforge.commands`, with `_` between two words.
COMMANDS = {
    "train": "train an encoder by a recipe, measure it, and write the page of the run",
    "adapt": "adapt an encoder to documents without judged queries, and make an index of them",
    "trim": "give the documents of a SPLADE encoder a wanted number of terms, without training",
    "evaluate": "measure an encoder on a retrieval set",
    "encode": "encode a corpus to vectors on disk",
    "index": "make an index of documents, and change its documents",
    "search": "search an index, and show the terms that matched",
    "serve": "answer searches of an index over HTTP, and serve a search page",
    "mine": "mine hard negatives for a split",
    "score": "score pairs of a query and a document with a teacher",
    "predict": "give texts the labels that a multi-label encoder has learned",
    "export model": "write an encoder for ONNX, Anserini, fastembed; experimental: Elasticsearch, OpenSearch",
    "export vectors": "write encoded vectors as files for another search engine",
    "report": "write the page of a run, or of two runs side by side",
    "recipe": "print a recipe, to copy and change it",
}
# What works on all cores for a while; `train` looks at the cores by itself.
LONG_WORK = {"adapt", "trim", "evaluate", "encode", "index", "mine", "score", "predict"}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command that the first words name.

    Args:
        arguments: The words after `lexforge`; None reads those of this process.

    Raises:
        SystemExit: If the words name no command, ask for help, or if the command ends with an error.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["--version"]:
        from lexforge import __version__

        print(f"lexforge {__version__}")
        return
    if words[:1] in (["-h"], ["--help"]):
        print(overview())
        return
    name = next((name for name in COMMANDS if words[: len(name.split())] == name.split()), None)
    if name is None:
        sys.exit(_no_command(words))
    rest = words[len(name.split()) :]
    module = import_module(f"lexforge.commands.{name.replace(' ', '_')}")
    if name == "train":  # its options are those of the recipe
        module.run_recipe_file(rest)
        return
    from lexforge.common.command_line import run_by, run_command, run_recipe
    from lexforge.common.shared_cores import share_cores

    if name in LONG_WORK and not {"-h", "--help"} & set(rest):
        share_cores()
    with run_by(f"lexforge {name}"):
        if name == "adapt":  # its steps and its learning rate follow from the model
            run_recipe(module.main, module.defaults, module.__doc__, resolve=module.resolve, arguments=rest)
        else:
            run_command(module.main, module.Config, module.__doc__, arguments=rest)


def overview() -> str:
    """The help of `lexforge` without a command.

    Returns:
        Lines of text that name every command.
    """
    return (
        "usage: lexforge COMMAND [OPTIONS]\n\n"
        "Train neural sparse (SPLADE) and dense retrievers, measure, search and ship them.\n\n"
        f"{_listed(COMMANDS)}\n\n"
        "`lexforge COMMAND --help` lists the options of a command. `python -m lexforge` does the same, and\n"
        "`accelerate launch -m lexforge train` (or encode) uses several devices."
    )


def _listed(names: Sequence[str] | dict[str, str]) -> str:
    width = max(len(name) for name in COMMANDS)
    return "\n".join(f"  {name:{width}}  {COMMANDS[name]}" for name in names)


def _no_command(words: list[str]) -> str:
    """Say which commands there are, where the words name none."""
    if not words:
        return overview()
    longer = [name for name in COMMANDS if name.split()[0] == words[0]]
    if longer:  # the first of two words
        return f"`lexforge {words[0]}` needs a second word:\n{_listed(longer)}"
    names = ", ".join(COMMANDS)
    return f"error: lexforge has no command {words[0]!r}; its commands are {names} (lexforge --help)"

"""Print a recipe, to copy and change it; without a name, list the recipes.

    lexforge recipe splade_v26 > my_recipe.py
    accelerate launch my_recipe.py --steps 100

A recipe is one file: its settings as a dataclass, and the training from top to bottom in `main`. The
configurations for `accelerate launch --config_file` are printed by the same command.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

import lexforge
from lexforge.common.words import shorten


@dataclass(frozen=True)
class Config:
    """Which file to print."""

    name: tyro.conf.Positional[str | None] = None  # such as splade_v26 or accelerate/fsdp.yaml


def recipe_folder() -> Path:
    """Find the recipes: inside the package of a wheel, or beside `src/` in a checkout.

    Returns:
        The folder.

    Raises:
        FileNotFoundError: If the package lies in neither.
    """
    package = Path(lexforge.__file__).resolve().parent
    for folder in (package / "recipes", package.parents[1] / "recipes"):
        if (folder / "splade_v26.py").is_file():
            return folder
    raise FileNotFoundError(f"{package} holds no recipes, and neither does a checkout around it")


def recipe_files() -> dict[str, Path]:
    """List what `lexforge recipe` prints.

    Returns:
        Name -> file: the recipes by their stem, the configurations with their folder and their ending.
    """
    folder = recipe_folder()
    files = {path.stem: path for path in sorted(folder.glob("*.py"))}
    return files | {f"accelerate/{path.name}": path for path in sorted(folder.glob("accelerate/*.yaml"))}


def find_recipe(name: str, *, trains: bool = False) -> Path:
    """Find a recipe, or a configuration, by its name.

    Args:
        name: A name of `recipe_files`.
        trains: Whether only recipes are allowed.

    Returns:
        The file.

    Raises:
        ValueError: If there is none of that name; the message lists those there are.
    """
    files = {key: path for key, path in recipe_files().items() if path.suffix == ".py" or not trains}
    if name not in files:
        raise ValueError(f"there is no recipe {name!r}; the names are {', '.join(files)}")
    return files[name]


def main(cfg: Config) -> None:
    """Print the file, or the names of the files and what each of them begins with."""
    if cfg.name is None:
        for name, path in recipe_files().items():
            begins = path.read_text(encoding="utf-8").replace("\n#", "\n").lstrip('"# ')
            print(f"{name:<28}{shorten(begins, 92, '...')}")
    else:
        print(find_recipe(cfg.name).read_text(encoding="utf-8"), end="")

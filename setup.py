"""The one thing that pyproject.toml cannot say: the wheel holds the recipes, which lie beside `src/`."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithRecipes(build_py):
    """Copy the recipes into the package `lexforge`; an editable installation finds them in the checkout."""

    def run(self) -> None:
        """Build the package, and then copy the recipes."""
        super().run()
        if self.editable_mode:
            return
        for file in [*Path("recipes").glob("*.py"), *Path("recipes/accelerate").glob("*.yaml")]:
            target = Path(self.build_lib, "lexforge", file)
            self.mkpath(str(target.parent))
            self.copy_file(str(file), str(target))


setup(cmdclass={"build_py": BuildWithRecipes})

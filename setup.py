"""What pyproject.toml cannot say: the wheel holds the recipes, and where the repository lies.

The recipes lie beside `src/`. LEXFORGE_REPOSITORY_URL and LEXFORGE_SITE_URL are set by who publishes;
with the first one the links of the README lead there, because a package index shows it without its folder.
"""

import os
import re
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

REPOSITORY = os.environ.get("LEXFORGE_REPOSITORY_URL", "").rstrip("/")
SITE = os.environ.get("LEXFORGE_SITE_URL", "").rstrip("/")
RELATIVE = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)\s]+)\)")


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


def readme() -> str:
    """Return the README, with links and pictures that work outside the repository if its place is known."""
    text = Path("README.md").read_text(encoding="utf-8")
    if not REPOSITORY:
        return text
    return RELATIVE.sub(rf"\1[\2]({REPOSITORY}/blob/main/\3)", text).replace(
        f"]({REPOSITORY}/blob/main/docs/images/", f"]({REPOSITORY}/raw/main/docs/images/"
    )


def urls() -> dict[str, str]:
    """Return the links of the package's page on an index."""
    links = {"Documentation": SITE}
    if REPOSITORY:
        links |= {"Source": REPOSITORY, "Issues": f"{REPOSITORY}/issues"}
        links |= {"Changelog": f"{REPOSITORY}/blob/main/CHANGELOG.md"}
    return {name: link for name, link in links.items() if link}


setup(
    cmdclass={"build_py": BuildWithRecipes},
    long_description=readme(),
    long_description_content_type="text/markdown",
    project_urls=urls(),
)

"""What a command line says for the card of a model; --help reads it before any library is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

UNKNOWN = "unknown"


@dataclass(frozen=True)
class CardOptions:
    """What nobody but the caller knows of a model, for its card, and where the model is uploaded.

    Args:
        text_language: Language of the texts (ISO 639-1), for the model's card.
        license: Licence of the model, as the Hugging Face hub writes it (apache-2.0, ...), for the model's
            card.
        push_to_hub: `organisation/name`: the model is uploaded there, to a private repository if there is
            none yet.
    """

    text_language: str = UNKNOWN
    license: str = UNKNOWN
    push_to_hub: str | None = None

    def facts(self, run_directory: str | Path) -> dict[str, str | None]:
        """Return the arguments of `CardFacts` that follow from the options.

        Args:
            run_directory: The folder of the run, whose name is the model's if it is not uploaded.

        Returns:
            `title`, `language`, `license` and `hub_name`.
        """
        title = (self.push_to_hub or Path(run_directory).resolve().name).rsplit("/", 1)[-1]
        return {
            "title": title,
            "language": self.text_language,
            "license": self.license,
            "hub_name": self.push_to_hub,
        }

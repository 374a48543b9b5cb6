"""Make a bare masked language model out of a small SPLADE encoder, where none can be downloaded.

    python scripts/bench/bare_language_model.py --model ../shared/models/splade-tiny \
        --data ../shared/data/medquad ../shared/data/newwiki --output runs/bare --steps 700

It trains the encoder to predict hidden words of the collections' documents, as every masked language model
is pretrained. The result retrieves badly and activates a large part of its vocabulary in every text, as
`bert-base-uncased` does.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import torch
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    get_linear_schedule_with_warmup,
)

from lexforge.common.progress import Progress
from lexforge.data import load_retrieval_data


def main() -> None:
    """Train on random documents and save the model with its tokenizer."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="a masked language model, such as a small SPLADE")
    parser.add_argument("--data", nargs="+", required=True, help="folders in BEIR layout")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=700)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=96, help="tokens per text")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    draw = random.Random(arguments.seed)
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    model = AutoModelForMaskedLM.from_pretrained(arguments.model).train()
    texts = [text for folder in arguments.data for text in load_retrieval_data(folder).corpus.values()]
    collate = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.learning_rate)
    schedule = get_linear_schedule_with_warmup(optimizer, 50, arguments.steps)
    with Progress(arguments.steps, "masked language model", "steps") as progress:
        for _ in range(arguments.steps):
            chosen = draw.sample(texts, arguments.batch_size)
            encoded = tokenizer(chosen, truncation=True, max_length=arguments.tokens)
            loss = model(**collate([{"input_ids": ids} for ids in encoded["input_ids"]])).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            progress.update(1)
    print(f"the loss of the last batch is {loss.item():.2f}")
    model.save_pretrained(arguments.output)
    tokenizer.save_pretrained(arguments.output)


if __name__ == "__main__":
    main()

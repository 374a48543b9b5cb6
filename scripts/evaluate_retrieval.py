"""Evaluate an encoder on a retrieval set: `lexforge evaluate`, from a checkout.

python scripts/evaluate_retrieval.py --model MODEL --data FOLDER --max-seq-length 128 --run run.trec
"""

import sys

from lexforge import cli

if __name__ == "__main__":
    cli.main(["evaluate", *sys.argv[1:]])

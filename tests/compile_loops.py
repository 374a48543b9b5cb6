"""Compile the loops of numba into their cache, as `make test` does while types are checked.

In a fresh checkout each process of the tests would compile them for itself, which takes a minute. Here two
processes share them: each kind of search has loops of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import torch
from scipy import sparse

from lexforge.kernels.encoder import attention, dropout
from lexforge.kernels.postings import segments_of, top_k


def build(*searches: str) -> None:
    """Build an index and search it; no test has ids of terms above 16 bits."""
    weights = np.random.default_rng(0).random((300, 20), np.float32)
    rows = sparse.csr_array(np.where(weights > 0.5, weights, 0))
    (postings,) = segments_of(rows)
    for impl in searches:
        top_k(rows[:3], postings, 5, impl=impl)


def search(impl: str) -> None:
    """Compile the loops of a search, and once more as a forked process does."""
    build(impl)
    child = os.fork()
    if not child:
        build(impl)
        os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        raise SystemExit(f"the loops of a forked process do not compile for {impl} searches")


def encode() -> None:
    """Compile the loops of an encoder in training."""
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.rand(1, 2, 4, 8, dtype=dtype, requires_grad=True)
        dropout(attention(x, x, x, None, 1.0, 0.1, (1, 2)), 0.1, (1, 2)).sum().backward()


def main() -> None:
    """Call each loop with each of its types; what both searches need is compiled before they part."""
    if sys.argv[1:] == ["exhaustive"]:
        search("exhaustive")
        encode()
        return
    build()
    other = subprocess.Popen([sys.executable, __file__, "exhaustive"])
    search("pruned")
    if other.wait():
        raise SystemExit("the loops of exhaustive searches or of an encoder do not compile")


if __name__ == "__main__":
    main()

"""Compile the loops of numba into their cache, as `make test` does while types are checked.

In a fresh checkout each process of the tests would compile them for itself, which takes most of a minute.
"""

from __future__ import annotations

import os

import numpy as np
import torch
from scipy import sparse

from lexforge.kernels.encoder import attention, dropout
from lexforge.kernels.postings import build_postings, top_k


def search() -> None:
    """Build and search an index, with each type of its loops."""
    rng = np.random.default_rng(0)
    for terms in (20, 70_000):  # their ids take 16 and 32 bits
        rows = sparse.random_array((300, terms), density=10 / terms, format="csr", dtype=np.float32, rng=rng)
        for impacts in ("float32", "uint8"):
            postings = build_postings(rows, impacts=impacts)
            for impl in ("pruned", "exhaustive"):
                top_k(rows[:3], postings, 5, impl=impl)


def main() -> None:
    """Call each loop with each of its types, and those of a search also as a forked process compiles them."""
    search()
    child = os.fork()
    if not child:
        search()
        os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        raise SystemExit("the loops of a forked process do not compile")
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.rand(1, 2, 4, 8, dtype=dtype, requires_grad=True)
        dropout(attention(x, x, x, None, 1.0, 0.1, (1, 2)), 0.1, (1, 2)).sum().backward()


if __name__ == "__main__":
    main()

"""An index in a web server or a data loader: threads that add and search, forked processes, and pickles."""

from __future__ import annotations

import os
import pickle
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse
from warm_processes import WarmProcesses

from lexforge.kernels.postings_search import search
from lexforge.retrieval import InvertedIndex

INDEX = """
import multiprocessing, os, signal, threading
signal.alarm(200)  # ends a process that waits for ever
import numpy as np
from scipy import sparse
from lexforge.retrieval import InvertedIndex

documents = sparse.csr_array(np.random.default_rng(0).integers(0, 3, (3000, 12)).astype(np.float32))
index = InvertedIndex.build(documents, [f"d{i}" for i in range(3000)])

def search(index):
    return [index.search(documents[:20], k).ids for k in (5, 2000)]  # with pruning, and exhaustively

expected = search(index)
"""
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="only POSIX systems fork")


def run(warm: WarmProcesses, code: str, **environment: str) -> None:
    """Run the code after the search of `INDEX` in a process that has had no threads; it must end well."""
    environment = {"OMP_NUM_THREADS": "2", "NUMBA_NUM_THREADS": "2"} | environment
    result = warm.completed("-c", INDEX + code, bare=True, environment=environment)
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith("searched\n"), result.stdout


@needs_fork
def test_a_forked_process_searches(warm: WarmProcesses) -> None:
    """`gunicorn --preload` forks after a search, and GNU OpenMP ends a child that uses its threads."""
    run(
        warm,
        """
child = os.fork()
if not child:
    os._exit(0 if search(index) == expected else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert search(index) == expected
print("searched")
""",
    )


@needs_fork
def test_a_pool_of_forked_processes_searches(warm: WarmProcesses) -> None:
    """A pool starts each dead worker again, so that the caller waited for ever."""
    run(
        warm,
        """
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map(search, [index] * 3) == [expected] * 3
print("searched")
""",
    )


def test_threads_search_with_the_layer_that_is_not_threadsafe(warm: WarmProcesses) -> None:
    """Without OpenMP, numba takes the layer `workqueue`, and two threads that meet in it end the process."""
    run(
        warm,
        """
found = []
def ask():
    found.extend(search(index) for _ in range(20))
threads = [threading.Thread(target=ask) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert found == [expected] * 160
print("searched")
""",
        NUMBA_THREADING_LAYER="workqueue",
        NUMBA_NUM_THREADS="8",
    )


@needs_fork
def test_a_process_that_is_forked_while_documents_are_added_searches(warm: WarmProcesses) -> None:
    """It waited for ever for the thread that adds, which it lacks, or found ids without documents."""
    run(
        warm,
        """
from lexforge.retrieval import inverted
index.add(documents, [f"again-{i}" for i in range(3000)])  # a second part, which the first search joins
adds, build = threading.Event(), inverted.segments_of
def segments_of(*arguments):
    adds.set()
    return build(*arguments)
inverted.segments_of = segments_of
others = sparse.csr_array(np.random.default_rng(1).integers(0, 3, (200_000, 12)).astype(np.float32))
thread = threading.Thread(target=index.add, args=(others, [f"other-{i}" for i in range(200_000)]))
thread.start()
adds.wait()
child = os.fork()
if child == 0:
    signal.alarm(60)
    found = index.search(documents[:1], 5)
    os._exit(0 if len(found.ids[0]) == 5 and len(index.ids) == 206_000 else 1)
assert os.waitpid(child, 0)[1] == 0
thread.join()
print("searched")
""",
    )


def test_threads_add_while_others_search(tmp_path: Path) -> None:
    """A search joined the parts while another thread appended one: documents were lost, also on the disk.

    Each document scores its own number, so that a hit under the id of another document is seen too.
    """
    index, wrong, done = InvertedIndex(2), [], threading.Event()
    query = sparse.csr_array(np.array([[1.0, 0.0]], np.float32))

    def add(first: int) -> None:
        for number in range(first, first + 2000, 10):
            weights = np.ones((10, 2), np.float32)
            weights[:, 0] = range(number, number + 10)
            index.add(sparse.csr_array(weights), [str(n) for n in range(number, number + 10)])

    def search() -> None:
        while not done.is_set():
            hits = index.search(query, 10_000)
            wrong.extend(
                (name, score)
                for name, score in zip(hits.ids[0], hits.scores[0].tolist(), strict=True)
                if int(name) != score
            )

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        adding = [threading.Thread(target=add, args=(1 + 2000 * n,)) for n in range(3)]
        searching = [threading.Thread(target=search) for _ in range(3)]
        for thread in (*adding, *searching):
            thread.start()
        for thread in adding:
            thread.join()
        done.set()
        for thread in searching:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    index.save(tmp_path / "index")
    assert not wrong
    expected = [str(number) for number in range(6000, 0, -1)]
    for found in (index, InvertedIndex.load(tmp_path / "index")):
        assert found.search(query, 10_000).ids == [expected]


def test_an_index_is_sent_to_another_process() -> None:
    """A pool of processes pickles what it is given, which a lock inside the index would forbid."""
    documents = sparse.csr_array(np.eye(3, dtype=np.float32))
    index = pickle.loads(pickle.dumps(InvertedIndex.build(documents, ["a", "b", "c"])))
    index.add(documents[[0]] * 2, ["d"])
    assert index.search(documents, 2).ids == [["d", "a"], ["b"], ["c"]]


def test_an_index_that_was_sent_is_searched_by_the_loop_that_is_there() -> None:
    """Each process of a pool compiled the search anew for half a minute: its arrays had another type."""
    index = InvertedIndex.build(sparse.csr_array(np.eye(300, dtype=np.float32)), [str(n) for n in range(300)])
    query = sparse.csr_array(np.eye(300, dtype=np.float32)[:1])
    index.search(query, 1)
    compiled = list(search.__wrapped__.signatures)
    assert pickle.loads(pickle.dumps(index)).search(query, 1).ids == [["0"]]
    assert search.__wrapped__.signatures == compiled != []

"""The application over HTTP: answers, refusals, errors, and documents that come while it runs."""

from __future__ import annotations

import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit
from urllib.request import urlopen

import pytest

from lexforge.common.types import Passage
from lexforge.corpus import open_searcher
from lexforge.serve import create_app, newest_index

WAIT_S = 60
WORDS = "sort list array search index query document vector sparse dense token model train loss".split()


@pytest.fixture(scope="module")
def client(index_folder: Path) -> Iterator[Any]:
    from fastapi.testclient import TestClient

    with TestClient(create_app(index_folder), raise_server_exceptions=False) as opened:
        yield opened


def answer_of(address: str, query: str, k: int = 10) -> dict[str, Any]:
    with urlopen(f"{address}/search?q={quote(query)}&k={k}", timeout=WAIT_S) as answer:
        return json.load(answer)


def test_an_answer_is_what_the_index_finds(
    client: Any, index_folder: Path, passages: dict[str, Passage]
) -> None:
    """The server adds places and snippets, and changes neither hits nor terms nor scores."""
    searcher = open_searcher(index_folder)
    query = "search the tree"
    answer = client.get("/search", params={"q": f"  {query} ", "k": 4}).json()
    found = searcher.answer([query], 4)[0].hits
    assert answer.keys() == {"query", "query_terms", "hits", "seconds", "documents", "generation"}
    assert (answer["query"], answer["documents"], answer["generation"]) == (query, len(passages), 1)
    assert 0 < answer["seconds"] < WAIT_S
    assert [term["term"] for term in answer["query_terms"]] == [
        term.term for term in searcher.answer([query], 1)[0].terms
    ]
    assert {term["term"] for term in answer["query_terms"] if term["own"]} <= {"search", "the", "tree"}
    assert len(answer["hits"]) == 4
    for rank, (hit, expected) in enumerate(zip(answer["hits"], found, strict=True), start=1):
        passage = passages[expected.id]
        assert (hit["rank"], hit["id"], hit["document"]) == (rank, expected.id, passage.document)
        assert hit["score"] == pytest.approx(expected.score, rel=1e-5)
        assert hit["title"] == passage.title
        assert hit["snippet"].strip("…") in passage.text
        assert hit["terms"] == [
            {"term": term.term, "score": pytest.approx(term.score, rel=1e-5), "own": term.own}
            for term in expected.terms
        ]


def test_marks_are_words_of_terms_that_matched(client: Any) -> None:
    """The page shows the marks as they come: each must be a word of the snippet with a token that matched."""
    marked = 0
    for hit in client.get("/search", params={"q": "search the tree"}).json()["hits"]:
        names = {term["term"]: term["own"] for term in hit["terms"]}
        for start, end, own in hit["marks"]:
            word = hit["snippet"][start:end].lower()
            pieces = {name for name in names if name.removeprefix("##") in word}
            assert pieces, word
            assert own == any(names[name] for name in pieces) or word not in names
            marked += 1
    assert marked > 10


def test_a_hostile_text_arrives_as_it_is(client: Any, passages: dict[str, Passage]) -> None:
    """JSON needs no escapes of HTML: the page sets text as text."""
    response = client.get("/search", params={"q": "sort the list", "k": 7})
    assert response.headers["content-type"] == "application/json"
    hits = {hit["id"]: hit for hit in response.json()["hits"]}
    hit = hits['d2"<b>']
    assert (hit["title"], hit["snippet"]) == ("<b>Title</b> & co", passages['d2"<b>'].text)
    assert hits["d3"]["snippet"] == passages["d3"].text


@pytest.mark.parametrize(
    "query", ["<script>", "\x00", "\u202e abc", "🌲", "검색", "a" * 2000, "'; DROP TABLE", "\ufeff", "%00%ff"]
)
def test_any_query_is_answered(client: Any, query: str) -> None:
    """Whatever a browser sends is text."""
    response = client.get("/search", params={"q": query})
    assert response.status_code == 200
    assert response.json()["query"] == query


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ("", "the query q is missing: /search?q=WORDS searches for words"),
        ("?q=", "the query q is blank: there is nothing to search for"),
        ("?q=%20%E3%80%80%0A", "the query q is blank: there is nothing to search for"),
        ("?q=" + "a" * 2001, "the query q may have 2000 characters; received 2001"),
        ("?q=a&k=0", "k must be a whole number from 1 to 100; received '0'"),
        ("?q=a&k=101", "k must be a whole number from 1 to 100; received '101'"),
        ("?q=a&k=-1", "k must be a whole number from 1 to 100; received '-1'"),
        ("?q=a&k=ten", "k must be a whole number from 1 to 100; received 'ten'"),
        ("?q=a&k=" + "9" * 50, f"k must be a whole number from 1 to 100; received '{'9' * 40}'"),
    ],
)
def test_a_bad_request_is_refused_with_a_sentence(client: Any, parameters: str, sentence: str) -> None:
    """What was received, and what is allowed."""
    response = client.get(f"/search{parameters}")
    assert response.status_code == 422
    assert response.json() == {"error": sentence}


def test_what_is_not_served_is_refused_with_a_sentence(client: Any) -> None:
    """Every error has one shape."""
    missing = client.get("/reload")
    assert (missing.status_code, missing.json()["error"]) == (
        404,
        "GET /reload is not served; /openapi.json says what is",
    )
    paths = ("/", "/health", "/search?q=tree", "/search")
    assert [client.head(path).status_code for path in paths] == [200, 200, 200, 422]  # as curl -I asks
    assert (
        client.get("/search/?q=tree", follow_redirects=False).status_code == 404
    )  # no way to another address
    posted = client.post("/search")
    assert (posted.status_code, posted.json()["error"][:12]) == (405, "POST /search")


def test_limits_are_those_of_the_application(index_folder: Path) -> None:
    """A small machine may allow less; the page and the schema must know."""
    from fastapi.testclient import TestClient

    with TestClient(create_app(index_folder, max_k=3, max_query_length=5)) as client:
        assert len(client.get("/search?q=tree").json()["hits"]) == 3
        assert "from 1 to 3" in client.get("/search?q=tree&k=4").json()["error"]
        assert client.get("/search?q=abcdef").status_code == 422
        page = client.get("/").text
        assert 'data-max-k="3"' in page
        assert 'maxlength="5"' in page


def test_health_says_what_is_served(client: Any, tiny_checkpoint: Path, passages: dict[str, Passage]) -> None:
    """For a monitor; the folders of the machine are no business of the client's."""
    assert client.get("/health").json() == {
        "ok": True,
        "documents": len(passages),
        "model": tiny_checkpoint.name,
        "generation": 1,
        "newest": True,
    }


def test_the_schema_describes_answers_and_errors(client: Any) -> None:
    """Clients are generated from it; the errors have the shape that they really have."""
    schema = client.get("/openapi.json").json()
    search = schema["paths"]["/search"]["get"]
    assert [parameter["name"] for parameter in search["parameters"]] == ["q", "k"]
    assert search["responses"].keys() == {"200", "422", "500", "503"}
    for status in ("422", "500", "503"):
        model = search["responses"][status]["content"]["application/json"]["schema"]["$ref"]
        assert model.endswith("/Problem")
    hit = schema["components"]["schemas"]["Hit"]
    assert hit["properties"].keys() >= {
        "rank",
        "id",
        "document",
        "score",
        "title",
        "snippet",
        "marks",
        "terms",
    }


def test_the_page_is_one_file_that_runs_its_own_script_alone(client: Any) -> None:
    """The policy names the script and the style by their hash, and no other host is asked for anything."""
    import base64
    import hashlib

    response = client.get("/")
    policy = response.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'; ")
    for tag in ("script", "style"):
        [inside] = re.findall(rf"<{tag}>(.*?)</{tag}>", response.text, flags=re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert not re.findall(r"https?:|//[a-z]", response.text.replace("// ", ""))
    assert "{{" not in response.text
    assert " on" not in " ".join(re.findall(r"<[a-z][^>]*>", response.text)), "an inline handler"
    assert "innerHTML" not in response.text


def test_each_of_many_clients_gets_its_own_answer(address: str) -> None:
    """Their searches are done together, with different k."""
    queries = [f"{a} {b}" for a in WORDS for b in WORDS if a < b][:16]
    alone = {query: answer_of(address, query, 7) for query in queries}
    wanted = [(query, 1 + number % 7) for number, query in enumerate(queries)] * 2
    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(lambda pair: answer_of(address, *pair), wanted))
    for (query, k), answer in zip(wanted, answers, strict=True):
        expected = alone[query]["hits"][:k]
        assert answer["query"] == query
        assert [hit["id"] for hit in answer["hits"]] == [hit["id"] for hit in expected]
        # padding of a batch changes the encoder's sums
        scores = [hit["score"] for hit in expected]
        assert [hit["score"] for hit in answer["hits"]] == pytest.approx(scores, rel=1e-4)
        names = [term["term"] for term in alone[query]["query_terms"]]
        assert {term["term"] for term in answer["query_terms"]} == set(names)


def test_an_error_is_a_sentence_and_the_server_lives_on(
    index_folder: Path,
    serving: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Neither the text of the exception nor its traceback goes to a client; the log has both."""
    app = create_app(index_folder)
    with serving(app) as address:
        searcher = app.state.index.current().searcher

        def broken(*_: Any) -> Any:
            raise RuntimeError("a secret path")

        monkeypatch.setattr(searcher, "answer", broken)
        connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=WAIT_S)
        connection.request("GET", "/search?q=tree")
        response = connection.getresponse()
        body = json.load(response)
        connection.close()
        assert response.status == 500
        assert body == {"error": "the search failed; the log of the server says why"}
        assert "a secret path" in caplog.text
        monkeypatch.undo()
        assert answer_of(address, "tree")["hits"]


def test_ranks_of_bm25_can_be_fused(index_folder: Path) -> None:
    """The page of a hybrid search is the same one; scores are those of the ranks."""
    from fastapi.testclient import TestClient

    expected = [
        hit.id for hit in open_searcher(index_folder, hybrid=True).answer(["sort the tree"], 5)[0].hits
    ]
    with TestClient(create_app(index_folder, hybrid=True)) as client:
        hits = client.get("/search?q=sort the tree&k=5").json()["hits"]
    assert [hit["id"] for hit in hits] == expected
    assert hits[0]["score"] < 2 / 61 + 1e-6


def test_an_overloaded_server_says_so(index_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """503 tells a client or a load balancer to come back."""
    from fastapi.testclient import TestClient

    monkeypatch.setattr("lexforge.serve.batched_search.MOST_WAITING", 0)
    with TestClient(create_app(index_folder)) as client:
        response = client.get("/search?q=tree")
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    assert response.json() == {"error": "too many searches wait; try again"}


def test_a_client_that_goes_breaks_nothing(
    index_folder: Path,
    serving: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A browser that types on closes its connections while they are answered."""
    has_begun, may_go = threading.Event(), threading.Event()
    app = create_app(index_folder)
    with serving(app) as address:
        searcher = app.state.index.current().searcher
        really = searcher.answer

        def slow(queries: Any, k: int) -> Any:
            has_begun.set()
            assert may_go.wait(WAIT_S)
            return really(queries, k)

        monkeypatch.setattr(searcher, "answer", slow)
        host, port = urlsplit(address).netloc.split(":")
        for _ in range(5):
            with socket.create_connection((host, int(port))) as gone:
                gone.sendall(b"GET /search?q=tree HTTP/1.1\r\nHost: x\r\n\r\n")
                assert has_begun.wait(WAIT_S)
        with socket.create_connection((host, int(port))) as half:
            half.sendall(b"GET /search?q=tr")
        may_go.set()
        assert answer_of(address, "tree")["hits"]
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_new_documents_are_found_and_no_request_is_dropped(
    make_index: Callable[..., Path],
    changed: Callable[[Path, str], None],
    serving: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An index is changed under a server that is busy."""
    monkeypatch.setattr(newest_index, "CHECK_SECONDS", 0.05)
    folder = make_index(tmp_path / "index")
    ended, generations = threading.Event(), []
    with serving(create_app(folder)) as address:

        def ask() -> int:
            asked = 0
            while not ended.is_set():
                answer = answer_of(address, "open the file", 20)
                assert answer["documents"] == len(answer["hits"]) == 6 + answer["generation"]
                generations.append(answer["generation"])
                asked += 1
            return asked

        with ThreadPoolExecutor(4) as pool:
            clients = [pool.submit(ask) for _ in range(4)]
            try:
                for number in (1, 2):
                    changed(folder, f"new{number}")
                    limit = time.monotonic() + WAIT_S
                    while generations[-1:] != [number + 1]:
                        assert time.monotonic() < limit
                        assert not any(client.done() for client in clients)
                        time.sleep(0.01)
            finally:
                ended.set()
            assert min(client.result(WAIT_S) for client in clients) > 0
        assert answer_of(address, "open the file", 20)["generation"] == 3
    assert {2, 3} <= set(generations)


def test_nothing_is_loaded_before_the_application_starts(index_folder: Path) -> None:
    """A server that forks its workers makes the application before: threads and locks would not survive."""
    before = set(threading.enumerate())
    app = create_app(index_folder)
    assert set(threading.enumerate()) <= before  # those of earlier tests may end meanwhile
    with pytest.raises(RuntimeError, match="call open"):
        app.state.index.current()


def test_an_application_can_start_again(index_folder: Path) -> None:
    """A test or a server that reloads starts the same application twice."""
    from fastapi.testclient import TestClient

    app = create_app(index_folder)
    for _ in range(2):
        with TestClient(app) as client:
            assert client.get("/search?q=tree").status_code == 200

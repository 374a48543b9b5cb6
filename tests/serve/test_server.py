"""The process that serves: its line, its port, its warning, and its end."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from warm_processes import WarmProcesses

from lexforge import cli
from lexforge.serve import run_server
from lexforge.serve.newest_index import NewestIndex

WAIT_S = 120


def test_the_command_serves_until_ctrl_c(index_folder: Path, warm: WarmProcesses, tmp_path: Path) -> None:
    """One line with the address, answers as soon as it is there, and an end at once without a traceback."""
    errors, deadline = tmp_path / "errors", time.monotonic() + WAIT_S
    words = ["lexforge", "serve", "--index", str(index_folder), "--port", "0"]
    (process,) = warm.start("-m", words, errors=errors)
    end = signal.SIGKILL  # if it never serves
    try:
        while not (line := warm.log.read_text()).endswith("\n"):
            assert time.monotonic() < deadline, errors.read_text()
            time.sleep(0.01)
        assert line.startswith(f"7 passages of {index_folder} are searched at http://127.0.0.1:"), line
        connection = http.client.HTTPConnection(urlsplit(line.split()[-1]).netloc, timeout=WAIT_S)
        connection.request("GET", "/search?q=tree&k=2")
        assert len(json.load(connection.getresponse())["hits"]) == 2
        end = signal.SIGINT  # the connection stays open
    finally:
        begun = time.monotonic()
        os.kill(process, end)
        ended = warm.end()
    assert time.monotonic() - begun < 10
    connection.close()
    assert (ended, warm.log.read_text()) == ([0], line)
    assert "Traceback" not in errors.read_text()
    assert "tree" not in errors.read_text(), "what is searched for is nobody's business"


def test_a_port_in_use_is_refused_before_the_encoder_is_loaded(index_folder: Path) -> None:
    """The usual mistake: a second server, or another program at this port."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(SystemExit) as end:
            cli.main(["serve", "--index", "no such index", "--port", str(port)])
    assert str(end.value).startswith(f"error: cannot listen at 127.0.0.1:{port}: ")
    assert "choose another --port" in str(end.value)


def test_a_second_server_is_refused_while_the_first_loads_its_encoder(
    index_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both could bind the port until one listened, and the second failed after it had loaded its own."""
    refused: list[str] = []

    def loading(self: NewestIndex) -> None:
        with pytest.raises(SystemExit) as end:
            cli.main(["serve", "--index", "no such index", "--port", str(port)])
        refused.append(str(end.value))
        raise KeyboardInterrupt

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setattr(NewestIndex, "open", loading)
    with pytest.raises(KeyboardInterrupt):
        run_server(index_folder, "127.0.0.1", port)
    assert refused[0].startswith(f"error: cannot listen at 127.0.0.1:{port}: ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--port", "0"], "holds no finished index"),
        (["--port", "70000"], "port must be from 0 to 65535; received 70000"),
        (["--port", "0", "--host", "no.such.host.invalid"], "cannot listen at no.such.host.invalid:0"),
        (["--port", "0", "--host", "192.0.2.1"], "cannot listen at 192.0.2.1:0"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], message: str, tmp_path: Path) -> None:
    """As for every command."""
    with pytest.raises(SystemExit) as end:
        cli.main(["serve", "--index", str(tmp_path), *words])
    assert str(end.value).startswith("error: ")
    assert message in str(end.value)


@pytest.mark.parametrize(
    ("host", "is_warned"), [("127.0.0.1", False), ("localhost", False), ("0.0.0.0", True)]
)
def test_an_open_port_is_warned_of(
    host: str,
    is_warned: bool,
    index_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """There is no authentication: whoever opens the port to others must know."""
    import uvicorn

    taken: list[Any] = []
    monkeypatch.setattr(uvicorn.Server, "run", lambda self, sockets: taken.extend(sockets))
    run_server(index_folder, host, 0)
    out, err = capsys.readouterr()
    assert out.count("\n") == 1
    assert ("there is no authentication" in err) == is_warned
    assert len(taken) == 1


@pytest.mark.parametrize(
    ("address", "answered", "refused"),
    [
        (
            "127.0.0.1",
            ["localhost", "LocalHost:8080", "127.0.0.1:1", "[::1]:8080"],
            ["evil.example", "localhost.evil.example:8080", ""],
        ),
        ("127.0.0.2", ["127.0.0.2"], ["evil.example"]),
        ("0.0.0.0", ["search.example"], []),
    ],
)
def test_a_local_server_answers_under_its_own_names_alone(
    address: str,
    answered: list[str],
    refused: list[str],
    index_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A page whose name was given the address of this machine must not read the documents."""
    import uvicorn
    from fastapi.testclient import TestClient

    if address == "127.0.0.2" and sys.platform == "darwin":
        pytest.skip("macOS has no other loopback address than 127.0.0.1")
    served: list[Any] = []
    monkeypatch.setattr(uvicorn.Server, "run", lambda self, sockets: served.append(self.config.app))
    run_server(index_folder, address, 0)
    with TestClient(served[0]) as client:
        for host in answered:
            for path in ("/search?q=tree", "/openapi.json"):
                assert client.get(path, headers={"host": host}).status_code == 200, host
        for host in refused:
            for path in ("/search?q=tree", "/openapi.json"):
                assert client.get(path, headers={"host": host}).status_code == 400, host

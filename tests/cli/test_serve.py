"""regard serve and the page of regard look: for this machine alone, ended by Ctrl-C, and files without a browser."""

import json
import re
import signal
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from urllib.error import HTTPError
from urllib.request import HTTPCookieProcessor, Request, build_opener, urlopen

import numpy as np
import pytest

from regard.serve import server

from .commands import assert_done, assert_refused, regard

SENTENCE = "the black cat ate the mouse"


def bound(port: int) -> set[str]:
    """The addresses that listen at a port, as Linux lists them."""
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            address, state = line.split()[1], line.split()[3]
            place, number = address.split(":")
            if int(number, 16) == port and state == "0A":
                found.add(place)
    return found


def test_the_page_is_served_to_this_machine_alone_until_somebody_ends_it(trained, start):
    running = start("serve", trained, "--port", 0)
    running.until(lambda: running.out.exists() and "Ctrl-C" in running.out.read_text())
    found = re.findall(r"^(http://127\.0\.0\.1:(\d+)/)\?token=([\w-]{32})$", running.out.read_text(), re.MULTILINE)
    ((where, port, token),) = found
    assert bound(int(port)) == {"0100007F"}
    with pytest.raises(HTTPError, match="403"):
        urlopen(f"{where}api/models")
    browser = build_opener(HTTPCookieProcessor())
    browser.open(f"{where}?token={token}").close()
    with browser.open(f"{where}api/models") as answer:
        (card,) = json.loads(answer.read())["models"]
    assert card["name"] == "run"
    body = json.dumps({"text": SENTENCE}).encode()
    with browser.open(Request(f"{where}api/traces", body, {"Content-Type": "application/json"})) as answer:
        trace = json.loads(answer.read())
    assert trace["axes"]["source"] == [*SENTENCE.split(), "</s>"]
    running.send(signal.SIGINT)
    assert running.ends() == 0
    assert "Traceback" not in running.err.read_text()


def test_a_port_that_is_taken(trained):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert_refused(regard("serve", trained, "--port", port), f"port {port} of 127.0.0.1 cannot be used")


def test_what_is_no_run_is_not_served(tmp_path):
    assert_refused(regard("serve", tmp_path, "--port", 0), f"{tmp_path} holds no model: settings.toml is missing")


def test_an_address_says_what_is_shown_first():
    with server.open_socket(0) as here:
        port = here.getsockname()[1]
        assert here.getsockname()[0] == "127.0.0.1"
        found = server.page_url(here, "secret", {"model": "a b", "text": "x&y=#é", "question": ""})
    assert found == f"http://127.0.0.1:{port}/?token=secret#model=a%20b&text=x%26y%3D%23%C3%A9"


# --- regard look ---


@pytest.mark.parametrize("suffix", [".html", ".npz", ".csv"])
def test_a_look_is_written_without_a_browser(suffix, trained):
    answer = regard("look", trained, SENTENCE, "--save", f"new/look{suffix}")
    assert assert_done(answer).endswith(f"\nwritten: new/look{suffix}\n")
    written = Path(f"new/look{suffix}").read_bytes()
    match suffix:
        case ".html":
            assert b"regard-data" in written
        case ".npz":
            assert np.load(f"new/look{suffix}")["decoder.0.cross/weights"].shape[0] == 2
        case ".csv":
            assert written.startswith(b"site,head,query,key")


def test_one_head_is_written(trained):
    assert_done(regard("look", trained, SENTENCE, "--save", "look.csv", "--head", "decoder.0.cross:1"))
    lines = Path("look.csv").read_text().splitlines()[1:]
    assert all(line.startswith("decoder.0.cross,1,") for line in lines)


def test_without_a_terminal_nothing_is_opened(trained, monkeypatch):
    monkeypatch.setattr(server, "open_page", lambda where: pytest.fail("opened"))
    assert SENTENCE in assert_done(regard("look", trained, SENTENCE))
    assert_refused(regard("look", trained), "no input; give a sentence, or start the page: regard serve")


@pytest.fixture
def terminal(monkeypatch) -> list[str]:
    """As if somebody sat there; what is opened is noted, and the server ends at once."""
    opened: list[str] = []
    monkeypatch.setattr(
        sys.modules["regard.cli.look"], "sys", SimpleNamespace(stdout=SimpleNamespace(isatty=lambda: True))
    )
    monkeypatch.setattr(server, "open_page", opened.append)
    monkeypatch.setattr(server, "serve", lambda models, *_: opened.append(", ".join(models.entries)))
    return opened


def test_in_a_terminal_the_page_opens_behind_what_is_said(trained, terminal):
    output = assert_done(regard("look", trained, SENTENCE))
    assert output.startswith(f"{SENTENCE}\n")
    assert re.search(r"/\?token=[\w-]{32}#", terminal[0])
    assert terminal[0].endswith("#model=run&text=the%20black%20cat%20ate%20the%20mouse")
    assert terminal[0] in output
    assert terminal[1] == "run"


def test_a_text_need_not_be_given_and_models_are_compared(trained, terminal):
    assert_done(regard("look", trained, "--with", trained))
    assert terminal[0].endswith("#model=run")
    assert terminal[1] == "run, run-2"


@pytest.mark.parametrize("words", [["--no-page"], ["--save", "look.svg"]])
def test_the_page_is_not_opened_when_nobody_wants_it(trained, terminal, words):
    assert_done(regard("look", trained, SENTENCE, *words))
    assert terminal == []


def test_without_the_extra_the_terminal_still_works(trained, terminal, monkeypatch):
    def missing():
        raise ValueError("the page needs uvicorn; install it: pip install 'regard[serve]'")

    monkeypatch.setattr(server, "require_serve_extra", missing)
    answer = regard("look", trained, SENTENCE)
    assert_done(answer)
    assert "pip install 'regard[serve]'" in answer.stderr
    assert_refused(regard("look", trained), "the page needs uvicorn")

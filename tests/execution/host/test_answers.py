"""Answers of hosts that are too large, too slow, or not HTTP at all."""

from __future__ import annotations

import contextlib
import gzip
import re
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator

import pytest

from tests.execution.host.scripted import Reply, scripted
from tests.facts import says
from torchx_kfp.errors import HostAnswerLostError, HostError, HostUnreachableError
from torchx_kfp.execution.host import connection as module
from torchx_kfp.execution.host.connection import Connection, Timeouts
from torchx_kfp.execution.host.settings import Settings

PATH = "/apis/v2beta1/runs"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
#: The servers here end each connection: one that does not say so may be asked again before it has.
EMPTY = b"Connection: close\r\nContent-Length: 0\r\n"
ONCE = Timeouts(whole=0.5, retries=0)


@contextlib.contextmanager
def host(answer: Callable[[socket.socket], object]) -> Iterator[str]:
    """Serve on a free port; each connection is answered by the function, which gets it after a request's headers."""
    listener = socket.create_server(("127.0.0.1", 0))
    open_ones = []

    def serve(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            request = b""
            while b"\r\n\r\n" not in request:
                request += connection.recv(1 << 16)
            answer(connection)
            connection.close()

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                open_ones.append(connection)
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()
        for connection in open_ones:
            connection.close()


def trickle(start: bytes, piece: bytes) -> Callable[[socket.socket], None]:
    def answer(connection: socket.socket) -> None:
        connection.sendall(start)
        while True:
            connection.sendall(piece)
            time.sleep(0.02)

    return answer


def test_a_host_that_accepts_and_says_nothing() -> None:
    with host(lambda connection: connection.recv(1)) as url:
        connection = Connection(Settings(host=url), Timeouts(read=0.3, wait=0.01))
        with pytest.raises(HostUnreachableError, match=says(url, PATH, "accepted", "did not answer within")) as caught:
            connection.get(PATH)
    found = re.search(r"within ([\d.]+)s", str(caught.value))
    assert found is not None
    assert float(found[1]) >= 0.9, "three times 0.3 s"


@pytest.mark.versions
@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(trickle(HEAD + b"Content-Length: 100000000\r\n\r\n{", b" " * 10_000), id="body"),
        pytest.param(trickle(HEAD + b"Content-Length: 100000000\r\n\r\n{", b" "), id="bytes"),
        pytest.param(trickle(HEAD + b"\r\n{", b" "), id="no length"),
        pytest.param(trickle(HEAD + b"X: ", b" "), id="headers"),
        pytest.param(trickle(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"), id="chunks"),
    ],
)
def test_an_answer_that_never_ends_is_left(answer: Callable[[socket.socket], object]) -> None:
    with host(answer) as url:
        connection = Connection(Settings(host=url), ONCE)
        begun = time.monotonic()
        with pytest.raises(HostUnreachableError, match=says(url, PATH, "not complete within 0.5 s")):
            connection.get(PATH)
        with pytest.raises(HostAnswerLostError, match=says("not complete within 0.5 s", "may have accepted it")):
            connection.post(PATH, {})
        assert time.monotonic() - begun < 60


@pytest.mark.versions
@pytest.mark.parametrize(
    ("answer", "fact"),
    [
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"F" * 20 + b"\r\n{}", "broke"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n-5\r\n{}", "broke"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nx\r\n{}", "broke"),
        (HEAD + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n{}", "broke"),
        (HEAD + b"Content-Length: -5\r\n\r\nx", ""),
        (b"HTTP/1.1 99999 x\r\n\r\n{}", "broke"),
        (b"HTTP/1.1 " + b"9" * 5000 + b"\r\n\r\n{}", "broke"),
        (b"\x00\x01\x02", "broke"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1000, "broke"),
        (HEAD + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}", "broke"),
        (HEAD + b"Content-Encoding: gzip, gzip\r\nContent-Length: 2\r\n\r\n{}", "broke"),
        (HEAD + b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(b"{}" * 99, mtime=0)[:-30], "something other"),
        (b"HTTP/1.1 302 x\r\nConnection: close\r\nLocation: http://127.0.0.1:0/\r\n\r\n", ""),
        (b"HTTP/1.1 302 x\r\n" + EMPTY + b"Location: " + PATH.encode() + b"\r\n\r\n", "redirected"),
        (b"HTTP/1.1 302 x\r\n" + EMPTY + b"Location: http://[nowhere\r\n\r\n", "broke"),
        (b"HTTP/1.1 429 x\r\n" + EMPTY + b"Retry-After: " + b"9" * 5000 + b"\r\n\r\n", "429"),
        (b"HTTP/1.1 429 x\r\n" + EMPTY + b"Retry-After: Sun, 99 Nov 99999999 99:99:99\r\n\r\n", "429"),
    ],
)
def test_what_is_not_http_is_an_error_and_no_traceback(answer: bytes, fact: str) -> None:
    patience = Timeouts(retries=1, wait=0.001)
    with host(lambda connection: connection.sendall(answer)) as url:
        for call in (Connection(Settings(host=url), patience).get, Connection(Settings(host=url), patience).post):
            with pytest.raises(HostError, match=says(url, fact)):
                call(PATH)


@pytest.mark.versions
def test_a_small_answer_that_unpacks_to_a_large_one_takes_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 1 << 20)
    packed = gzip.compress(b"[" * (64 << 20), compresslevel=1)
    with scripted(lambda request: Reply(packed, headers={"Content-Encoding": "gzip"})) as server:
        connection = Connection(Settings(host=server.url), Timeouts(retries=0))
        with pytest.raises(HostError, match="before"):
            connection.post(PATH)  # the client is made before memory is measured
        tracemalloc.start()
        with pytest.raises(HostError, match=says(PATH, "larger than 1 MiB")):
            connection.get(PATH)
        assert tracemalloc.get_traced_memory()[1] < 24 << 20
        tracemalloc.stop()


@pytest.mark.versions
@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_an_answer_without_an_end_is_cut_off(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 1 << 20)

    def answer(connection: socket.socket) -> None:
        connection.sendall(HEAD + f"Content-Encoding: {encoding}\r\n\r\n".encode())
        piece = b"[" * (1 << 16) if encoding == "identity" else gzip.compress(b"[" * (2 << 20))
        while True:
            connection.sendall(piece)

    with host(answer) as url, pytest.raises(HostError, match=says(url, "larger than 1 MiB")):
        Connection(Settings(host=url), Timeouts(retries=0)).get(PATH)


@pytest.mark.versions
def test_a_packed_answer_is_unpacked() -> None:
    packed = gzip.compress(b'{"ok": true}')
    with scripted(lambda request: Reply(packed, headers={"Content-Encoding": "gzip"})) as server:
        assert Connection(Settings(host=server.url)).get(PATH) == {"ok": True}


@pytest.mark.parametrize(
    "content",
    [
        *("", "hello", "[1]"),
        '{"a": ' * 200 + "1" + "}" * 200,
        "[" * 100_000,
        '{"a": 1e400}',
        '{"a": NaN}',
        '{"a": -Infinity}',
        f'{{"a": {"9" * 4000}}}',
        f'{{"a": {"9" * 5000}}}',
        b'{"a": "\xff"}',
    ],
)
def test_json_that_nobody_can_use_is_not_kfps(content: str | bytes) -> None:
    with scripted(lambda request: Reply(content)) as server:
        connection = Connection(Settings(host=server.url))
        with pytest.raises(HostUnreachableError, match=says(server.url, "something other than KFP's API")):
            connection.get(PATH)
        with pytest.raises(HostAnswerLostError, match=says("something other than KFP's API", "may have accepted it")):
            connection.post(PATH, {})


@pytest.mark.parametrize("status", [302, 307])
def test_a_redirect_is_not_followed(status: int) -> None:
    with scripted(lambda request: Reply({"secret": 1})) as other, scripted(lambda request: Reply({})) as server:
        connection = Connection(Settings(host=server.url))
        for location, shown in ((f"{other.url}/apis", other.url), ("/there", f"{server.url}/there")):
            moved = Reply("", status, {"Location": location})
            server.script = lambda request, moved=moved: moved
            with pytest.raises(HostError, match=says("redirected to", shown, "as the host")):
                connection.get(PATH)
            with pytest.raises(HostAnswerLostError, match=says("redirected to", shown, "It may have arrived")):
                connection.post(PATH, {"pipeline_spec": "mine"}, if_lost="It may have arrived.")
        assert not other.requests
        assert {request.path for request in server.requests} == {PATH}

"""A server between a client and an S3 server: it delays requests, rejects them, and cuts connections."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import Any
from urllib.parse import urlsplit

_METHODS = (b"GET ", b"PUT ", b"HEAD ", b"POST ", b"DELETE ")


class Proxy:
    """Passes requests on to the server at the URL.

    ``faults`` lists what happens to each of the next requests: a number such as 503 is an HTTP status with which it is
    answered instead of being passed on; ``"cut"`` closes the connection before the request is passed on, ``"lost"``
    after the server has handled it, and ``"half"`` in the middle of the answer; a float delays it by this many seconds;
    None does nothing. Requests after the last one get ``otherwise``. All requests of a method in ``refused`` get its
    status: ``{"PUT": 403}`` is the answer to credentials without the right to write.
    """

    def __init__(self, url: str, otherwise: float | str | int | None = None) -> None:
        parts = urlsplit(url)
        self._upstream = (parts.hostname, parts.port)
        self.otherwise = otherwise
        self.faults: deque[float | str | int | None] = deque()
        self.refused: dict[str, int] = {}
        self.requests: list[str] = []
        self.at_once = 0
        self.most_at_once = 0
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> Proxy:
        self._thread.start()
        assert self._started.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(30)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._end = asyncio.Event()
        self._clients: set[asyncio.Task[Any]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        server = await asyncio.start_server(self._client, "127.0.0.1", 0, backlog=1024)
        self._port = server.sockets[0].getsockname()[1]
        self._started.set()
        await self._end.wait()
        server.close()
        for task in self._clients:
            task.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()
        # Connections are closed in one of the loop's next turns; one that stays open causes a warning in another test.
        await asyncio.sleep(0.05)

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._clients.add(task)
        self._writers.add(writer)
        try:
            upstream, to_upstream = await asyncio.open_connection(*self._upstream)
            self._writers.add(to_upstream)
        except OSError:
            writer.close()
            return
        state: dict[str, Any] = {"fault": None, "open": False}
        answers = asyncio.create_task(self._answers(upstream, writer, state))
        try:
            while data := await reader.read(1 << 16):
                if data.startswith(_METHODS):
                    fault = self._begin(data, state)
                    if isinstance(fault, int):
                        writer.write(b"HTTP/1.1 %d Fault\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" % fault)
                        await writer.drain()
                        break
                    if fault == "cut":
                        break
                    if isinstance(fault, float):
                        await asyncio.sleep(fault)
                to_upstream.write(data)
                await to_upstream.drain()
        except (OSError, asyncio.CancelledError):  # canceled at the end: asyncio would log such a task
            pass
        finally:
            self._finish(state)
            answers.cancel()
            to_upstream.close()
            writer.close()
            self._clients.discard(task)

    async def _answers(
        self, upstream: asyncio.StreamReader, writer: asyncio.StreamWriter, state: dict[str, Any]
    ) -> None:
        while data := await upstream.read(1 << 16):
            if not data.startswith(b"HTTP/1.1 100"):
                self._finish(state)
                if state["fault"] in ("lost", "half"):
                    writer.write(data[: len(data) // 2] if state["fault"] == "half" else b"")
                    break
            writer.write(data)
            await writer.drain()
        writer.close()

    def _begin(self, data: bytes, state: dict[str, Any]) -> float | str | int | None:
        self.requests.append(data.partition(b" HTTP")[0].decode())
        state["fault"] = self.faults.popleft() if self.faults else self.otherwise
        state["fault"] = self.refused.get(self.requests[-1].partition(" ")[0], state["fault"])
        state["open"] = True
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        return state["fault"]

    def _finish(self, state: dict[str, Any]) -> None:
        if state["open"]:
            state["open"] = False
            self.at_once -= 1

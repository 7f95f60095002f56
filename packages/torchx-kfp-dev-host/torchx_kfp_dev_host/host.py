"""The host: KFP's API at an address of this machine, for as long as a context lasts."""

from __future__ import annotations

import hmac
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from torchx_kfp_dev_host.api import Api
from torchx_kfp_dev_host.errors import Refused, proxy_error
from torchx_kfp_dev_host.runs import Run
from torchx_kfp_dev_host.serving import Answer, Handler, Server

_ABOUT = "This is the dev host of torchx-kfp: it has the API of KFP 2, and no pages. Use: torchx-kfp watch RUN\n"


class DevHost:
    """KFP's API on a port of this machine's loopback address."""

    handler = Handler
    api = Api

    def __init__(
        self, folder: Path, *, port: int = 0, token: str | None = None, options: Mapping[str, Any] | None = None
    ) -> None:
        """Listen; requests are answered in the context.

        Args:
            folder: the folder for the runs, which share a cache.
            port: the port. Default: a free one.
            token: the token that requests must have, if any.
            options: options for local runs, with secrets and config maps.

        Raises:
            OSError: the port is in use.
        """
        #: The token may change at any time.
        self.token = token
        self._api = self.api(Path(folder).absolute(), {"directory": str(Path.cwd()), **(options or {})})
        self._server = Server(("127.0.0.1", port), self, self.handler)
        serve = {"poll_interval": 0.05}
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs=serve, daemon=True)

    @property
    def url(self) -> str:
        """The host's URL, as users give it to ``kfp.Client``."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def runs(self) -> Mapping[str, Run]:
        """The runs by their ids."""
        return self._api.runs

    def __enter__(self) -> Any:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the server, and the runs in progress with their processes."""
        self._server.shutdown()
        self._thread.join()
        self._server.close()
        for run in self.runs.values():
            run.stop()
        for run in self.runs.values():
            run.close()

    def handle(self, method: str, target: str, headers: Mapping[str, str], data: bytes) -> Answer:
        """Return the answer to a request."""
        if (refused := self.refuse(headers)) is not None:
            return refused
        parts = urlsplit(target)
        if (method, parts.path) == ("GET", "/"):
            return Answer(200, _ABOUT, "text/plain")
        given = headers.get("authorization", "")
        if self.token is not None and not hmac.compare_digest(given.encode(), f"Bearer {self.token}".encode()):
            return Answer.json(401, proxy_error(401))
        try:
            query = dict(parse_qsl(parts.query, keep_blank_values=True))
            content = self._api.answer(method, parts.path, query, json.loads(data or b"null"))
        except Refused as error:
            return Answer.json(error.status, error.answer)
        return Answer(200, content, "text/plain") if isinstance(content, str) else Answer.json(200, content)

    def refuse(self, headers: Mapping[str, str]) -> Answer | None:
        """Refuse the requests of other sites: of a page in a browser, or with another name for this machine."""
        port = self._server.server_address[1]
        own = {f"127.0.0.1:{port}", f"localhost:{port}"}
        origin = headers.get("origin")
        if headers.get("host") in own and (origin is None or urlsplit(origin).netloc in own):
            return None
        return Answer.json(403, {"code": 7, "message": "The dev host answers programs of this machine only."})

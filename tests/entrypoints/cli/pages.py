"""The page of runs, as ``torchx-kfp ui`` serves it."""

from __future__ import annotations

import contextlib
import http.client
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

import click
from click.core import ParameterSource

from tests.execution.report.runs import Page, shown
from tests.programs import Process, Program
from torchx_kfp.entrypoints.cli.commands.ui.application import Application
from torchx_kfp.entrypoints.cli.lookup import Lookup


@dataclass(frozen=True)
class Answer:
    """What the page answered."""

    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def rows(self) -> list[dict[str, str]]:
        """The rows of the table by their headings; the results of a stage have its name before theirs."""
        page = Page(self.text)
        headings = [shown(it).rstrip(" ↑↓") for it in page.of("thead")[0][0]] if page.of("thead") else []
        rows = page.of("tr", page.of("tbody")[0]) if headings else []
        return [dict(zip(headings, map(shown, row), strict=True)) for row in rows]

    @property
    def keys(self) -> list[str]:
        """What names the runs of a list in addresses."""
        return [it.get("value", "") for it in Page(self.text).of("input") if it.get("name") == "run"]

    @property
    def notices(self) -> list[str]:
        """The sentences above the table."""
        return [shown(it) for it in Page(self.text).of("p.notice")]


@dataclass(frozen=True)
class Served:
    """A page that is served."""

    process: Process
    url: str

    def ask(self, path: str, method: str = "GET", **headers: str) -> Answer:
        """Return the answer to a request; the path is what follows the port."""
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=120)
        try:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return Answer(answer.status, dict(answer.headers), answer.read().decode())
        finally:
            connection.close()

    def get(self, page: str = "", **query: str | list[str]) -> Answer:
        """Return a page; a word of the query may have several values."""
        pairs = [(name, it) for name, those in query.items() for it in ([those] if isinstance(those, str) else those)]
        answer = self.ask(urlsplit(self.url).path + page + "?" + "&".join(f"{name}={quote(it)}" for name, it in pairs))
        assert answer.status == 200, answer
        return answer


def all_pages(output_dir: str, base: str | None = None) -> Iterator[str]:
    """Yield the list, the reports and a comparison of all runs, as the application of this process answers."""
    with click.Context(click.Command("ui")) as context:
        context.set_parameter_source("output_dir", ParameterSource.COMMANDLINE)
        application = Application(Lookup(output_dir, base=base), "token")

    def ask(page: str, query: str = "") -> Answer:
        said: list[Any] = []
        environ = {
            "HTTP_HOST": "localhost",
            "REQUEST_METHOD": "GET",
            "PATH_INFO": f"/token/{page}",
            "QUERY_STRING": query,
        }
        body = application(environ, lambda status, headers: said.extend([status, headers]))
        assert said[0] == "200 OK", said
        return Answer(200, dict(said[1]), b"".join(body).decode())

    found = ask("")
    yield found.text
    yield from (ask("report", f"run={key}").text for key in found.keys)
    yield from (ask("compare", f"run={found.keys[0]}&run={key}").text for key in found.keys[1:])


@contextlib.contextmanager
def served(call: Program, *words: str, **environ: str) -> Iterator[Served]:
    """Serve the page as a user does who has no browser."""
    with call.start("ui", "--port", "0", "--no-browser", *words, **environ) as process:
        url = process.stdout.readline().strip()
        assert url, process.communicate()
        yield Served(process, url)

"""The page of runs as a WSGI application: the list of runs, a comparison, and the report of a run. It only reads.

Everything is refused without the token in the path, which other users and web pages do not know, and under another
name than this machine's: a web page could give its own host's name the address of this machine. Runs are named by keys
of the list, so a request cannot name a file.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import click

from torchx_kfp.common.text import printable
from torchx_kfp.entrypoints.cli.commands.compare import compare_runs, show_values
from torchx_kfp.entrypoints.cli.commands.runs import RUN_COLUMNS
from torchx_kfp.entrypoints.cli.commands.ui.listing import ListedRun, Runs
from torchx_kfp.entrypoints.cli.conditions import parse_comparison, select
from torchx_kfp.entrypoints.cli.display.printing import is_number
from torchx_kfp.entrypoints.cli.lookup import Lookup
from torchx_kfp.errors import TorchxKfpError
from torchx_kfp.execution.report.model import read_for_page
from torchx_kfp.execution.report.page import fill, render
from torchx_kfp.execution.runs.vocabulary import RUN_STATES

_TEMPLATE = Path(__file__).parent / "page.html"
_THIS_MACHINE = re.compile(r"(127\.0\.0\.1|localhost)(:\d{1,5})?")
#: Runs on a page, results that have columns, and the least and largest numbers of runs that are compared.
_PAGE, _COLUMNS, _FEWEST, _MOST = 100, 30, 2, 20
_HEADERS = {
    "Allow": "GET, HEAD",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",  # each page has the rest, as a report in a file does
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
#: The words of a query: a name may have several values.
_Query = Sequence[tuple[str, str]]


class _RefusedError(Exception):
    """A request that is not answered: a status of HTTP, and a sentence that says why."""


class Application:
    """Answers requests for the page."""

    def __init__(self, lookup: Lookup, token: str) -> None:
        self._token, self._runs = token.encode(), Runs(lookup)

    def __call__(self, environ: Mapping[str, Any], start_response: Callable[..., object]) -> list[bytes]:
        """Answer a request, as WSGI does it."""
        try:
            status, text, kind = HTTPStatus.OK, self._answer(environ), "html"
        except _RefusedError as error:
            (status, text), kind = error.args, "plain"
        body = text.encode("utf-8", "replace")
        start_response(
            f"{status} {status.phrase}", [*_HEADERS.items(), ("Content-Type", f"text/{kind}; charset=utf-8")]
        )
        return [body if environ["REQUEST_METHOD"] != "HEAD" else b""]

    def _answer(self, environ: Mapping[str, Any]) -> str:
        """Return the page that a request asks for.

        Raises:
            _RefusedError: the request comes from somewhere else, would change something, or names what does not exist.
        """
        if not _THIS_MACHINE.fullmatch(environ.get("HTTP_HOST", "")):
            raise _RefusedError(HTTPStatus.FORBIDDEN, "Only requests for 127.0.0.1 or localhost are answered.\n")
        token, slash, name = environ.get("PATH_INFO", "").removeprefix("/").partition("/")
        if not secrets.compare_digest(token.encode("latin-1", "replace"), self._token):
            raise _RefusedError(HTTPStatus.FORBIDDEN, "The address lacks the token that `torchx-kfp ui` has printed.\n")
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            raise _RefusedError(HTTPStatus.METHOD_NOT_ALLOWED, "This page can only be read.\n")
        pages: dict[str, Callable[[_Query], str]] = {"": self._list, "compare": self._compare, "report": self._report}
        if not slash or name not in pages:
            raise _RefusedError(HTTPStatus.NOT_FOUND, "There is no such page; the address of the list ends with /.\n")
        try:
            return pages[name](parse_qsl(environ.get("QUERY_STRING", "")))
        except _RefusedError:
            raise
        except (TorchxKfpError, OSError) as error:
            return _fill([str(error)])
        except click.UsageError as error:
            return _fill([error.message])
        except Exception as error:  # a folder or a host may hold anything
            return _fill([f"This page cannot be shown: {type(error).__name__}: {error}"])

    def _list(self, query: _Query) -> str:
        runs, problems = self._runs.read()
        given = {"name": "", "state": "", "sort": "", "page": "", **dict(query)}
        where = [value for name, value in query if name == "where"]
        try:
            values = {key: run.values for key, run in runs.items()}
            keys = select(values, list(map(parse_comparison, where)), list(filter(None, [given["sort"]])))
            keys = [key for key in keys if runs[key].is_called(given["name"])]
            keys = [key for key in keys if given["state"] in ("", runs[key].row["state"])]
        except click.UsageError as error:
            keys, problems = [], [error.message, *problems]
        number = int(given["page"]) if re.fullmatch("[1-9][0-9]{0,5}", given["page"]) else 1
        shown = {key: runs[key] for key in keys[_PAGE * (number - 1) : _PAGE * number]}
        # What orders and filters the runs comes first, and texts last: URLs are long.
        texts = {name: not is_number(its[0]) for run in shown.values() for name, its in run.results.items()}
        named = " ".join([given["sort"], *where])
        results = sorted(texts, key=lambda name: ("/".join(name) not in named, name[1] not in named, texts[name]))

        def link(**changes: object) -> str:
            """Return the address of this list with changes."""
            kept = [(name, value) for name, value in query if name not in ("page", *changes)]
            return "?" + urlencode([*kept, *changes.items()], errors="replace")

        return _fill(
            problems,
            places=self._runs.places,
            runs=shown,
            count=(len(keys), len(runs)),
            pages=(number, max(1, -(-len(keys) // _PAGE))),
            columns=[column for column in RUN_COLUMNS if any(column.text(run.row) for run in shown.values())],
            results=results[:_COLUMNS],
            more=results[_COLUMNS:],
            given={**given, "where": where},
            states=RUN_STATES,
            link=link,
        )

    def _compare(self, query: _Query) -> str:
        runs = {value: self._run(value) for name, value in query[: _MOST + 2] if name == "run"}
        if not _FEWEST <= len(runs) <= _MOST:
            raise click.UsageError(f"Choose {_FEWEST} to {_MOST} runs to compare.")
        changed = ("changed", "1") in query
        compared = compare_runs([self._runs.recorded(run) for run in runs.values()], changed=changed)
        other = [*(("run", key) for key in runs), *([] if changed else [("changed", "1")])]
        rows = [(row["changed"], [column.text(row) for column in compared.columns]) for row in compared.rows]
        return _fill([], compared=runs, rows=rows, changed=changed, other="?" + urlencode(other))

    def _report(self, query: _Query) -> str:
        run = self._run(dict(query).get("run", ""))
        if run.find is None:
            raise click.UsageError(f"Only records of {run.row['run']} are known, and not the run itself.")
        return render(read_for_page(run.find()), None)

    def _run(self, key: str) -> ListedRun:
        runs, _ = self._runs.read()
        if key not in runs:
            raise _RefusedError(HTTPStatus.NOT_FOUND, "There is no such run, or no longer.\n")
        return runs[key]


def _fill(problems: Sequence[str], **content: Any) -> str:
    empty: dict[str, Any] = {"places": (), "runs": None, "compared": None, "show": show_values, "printable": printable}
    return fill(_TEMPLATE, forms="'self'", problems=problems, **{**empty, **content})

"""The page of runs as a WSGI application: the list of runs, a comparison, and the report of a run. It only reads.

It lists local runs, those of a host, and those that have records under a tracker base. Requests need the token in the
path, which other users and web pages do not know, and this machine's name, because a web page could resolve its own
host's name to this machine. Runs are named by keys of the list, so a request cannot name a file.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import click

from torchx_kfp.common.text import printable
from torchx_kfp.contract.protocol import superseded
from torchx_kfp.entrypoints.cli.commands.compare import compare_runs, show_values
from torchx_kfp.entrypoints.cli.commands.runs import RUN_COLUMNS, UNKNOWN, run_as_json, summary_as_json
from torchx_kfp.entrypoints.cli.conditions import parse_comparison, select
from torchx_kfp.entrypoints.cli.display.printing import is_number
from torchx_kfp.entrypoints.cli.lookup import Lookup, connect, lists_host, names_host, usual_base
from torchx_kfp.entrypoints.cli.recorded import RunRecords, open_record_tracker, parts
from torchx_kfp.errors import TorchxKfpError
from torchx_kfp.execution.pipeline.walk import without_indices
from torchx_kfp.execution.report.model import read_for_page
from torchx_kfp.execution.report.page import fill, render
from torchx_kfp.execution.runs.history import RunReader, find_runs
from torchx_kfp.execution.runs.journal import EVENTS_FILE
from torchx_kfp.execution.runs.source import RunSource
from torchx_kfp.execution.runs.vocabulary import RUN_STATES, State
from torchx_kfp.tracking.record_tracker import RecordTracker, is_replay
from torchx_kfp.tracking.store import pipeline_run

#: The cache is valid for this many seconds, and at least for this multiple of the reading time.
_FRESH, _SHARE = 3.0, 2.0
#: The most listed runs of a host.
_MOST_OF_HOST = 200
#: Results older than this, in seconds, only change with the time of their file.
_SETTLED = 60.0

#: The values of a run from all executions of a stage, by stage and name.
Results = Mapping[tuple[str, str], list[Any]]


@dataclass(frozen=True)
class ListedRun:
    """A run of the list.

    Attributes:
        find: finds the run itself, with the arguments of ``Lookup.on_host``; None if only its records are known.
    """

    row: Mapping[str, Any]
    results: Results = field(default_factory=dict)
    find: Callable[..., RunSource] | None = None

    @cached_property
    def values(self) -> Mapping[str, Sequence[Any]]:
        """The values for conditions and sort keys: ``state``, ``loss``, ``train/loss``."""
        found: dict[str, list[Any]] = {}
        for (stage, name), values in self.results.items():
            found.setdefault(name, []).extend(values)
            found.setdefault(f"{stage}/{name}", []).extend(values)
        own = {name: [value] for name, value in self.row.items() if isinstance(value, str | int | float)}
        return {**found, **own}

    def is_called(self, name: str) -> bool:
        """Return whether the run's id, name or pipeline contains a text."""
        return any(name.lower() in str(self.row[field] or "").lower() for field in ("run", "name", "pipeline"))


class Runs:
    """All runs in the locations that a command's options name, reread after some seconds."""

    def __init__(self, lookup: Lookup) -> None:
        """Find the locations of runs.

        Raises:
            TrackerBaseError: the tracker base of the option cannot be read.
            HostSettingsError: a setting of the host is wrong.
        """
        flags, self._lookup = lookup.flags, lookup
        self._output_dir = None if names_host(flags) else lookup.output_dir
        self._host = connect(flags, is_patient=names_host(flags)) if lists_host(flags) else None
        if lookup.base:
            open_record_tracker(lookup.base)
        self._base = lookup.base or usual_base(self._output_dir)
        host = self._host.connection.name if self._host is not None else None
        self.places = list(filter(None, [self._output_dir, host, self._base]))
        self._lock, self._until = threading.Lock(), 0.0
        self._runs: dict[str, ListedRun] = {}
        self._problems: list[str] = []
        # Unchanging data: local runs by folder, with the state of their files, and results with their times.
        self._ended: dict[Path, tuple[object, ListedRun]] = {}
        self._settled: dict[str, tuple[float, Mapping[str, Any]]] = {}

    def read(self) -> tuple[Mapping[str, ListedRun], Sequence[str]]:
        """Return the runs by key, newest first, and messages about unreadable ones."""
        with self._lock:
            if (start := time.monotonic()) >= self._until:
                self._problems = []
                recorded = {run.row["run"]: run for run in self._readable(self._recorded())}
                listed = [*self._readable(self._on_host()), *self._readable(self._here())]
                for at, run in enumerate(listed):
                    of = recorded.pop(run.row["run"], ListedRun({}))
                    listed[at] = replace(run, results=run.results or of.results)
                listed = sorted([*listed, *recorded.values()], key=lambda run: run.row["started"] or 0.0, reverse=True)
                # Run ids and folders may have any characters.
                names = [
                    f"{run.row.get('folder')}\0{run.row['run']}".encode("utf-8", "surrogatepass") for run in listed
                ]
                self._runs = {
                    hashlib.sha256(name).hexdigest()[:16]: run for name, run in zip(names, listed, strict=True)
                }
                took = time.monotonic() - start
                self._until = start + took + max(_FRESH, _SHARE * took)
            return self._runs, self._problems

    def recorded(self, run: ListedRun) -> RunRecords:
        """Return the records of a run; errors as for ``Lookup.locate``."""
        if run.find is not None:
            return self._lookup.recorded(run.find(reads="execution ids"))
        return RunRecords(open_record_tracker(self._base or ""), run.row["run"])

    def _readable(self, runs: Iterator[ListedRun]) -> Iterator[ListedRun]:
        try:
            yield from runs
        except (TorchxKfpError, OSError) as error:
            self._problems.append(str(error))

    def _recorded(self) -> Iterator[ListedRun]:
        """Yield the runs with records under the tracker base, without replays and earlier attempts."""
        if self._base is None:
            return
        tracker = open_record_tracker(self._base)
        written = tracker.written()
        left_out = superseded(written) | {key for key in written if is_replay(key)}
        keys: dict[str, list[str]] = {}
        for key in sorted(written.keys() - left_out):
            keys.setdefault(pipeline_run(key), []).append(key)
        results = self._results(tracker, written)
        for run, its in keys.items():
            row = {**UNKNOWN, "run": run, "started": min(written[key] for key in its)}
            found = _by_stage((parts(key).get("stage", ""), results[key]) for key in its if key in results)
            yield ListedRun(row, found)

    def _results(self, tracker: RecordTracker, written: Mapping[str, float]) -> Mapping[str, Mapping[str, Any]]:
        """Return all results by key; old ones are read only once."""
        now, keys = time.time(), tracker.keys()
        known = {key: self._settled[key] for key in keys if self._settled.get(key, (None,))[0] == written.get(key)}
        read = tracker.get_many(key for key in keys if key not in known)
        self._problems += (f"Left out: {error}" for error in read.problems)
        known |= {key: (written.get(key, now), its) for key, its in read.items()}
        self._settled = {key: (at, its) for key, (at, its) in known.items() if at < now - _SETTLED}
        return {key: its for key, (_, its) in known.items()}

    def _on_host(self) -> Iterator[ListedRun]:
        runs = [] if self._host is None else list(self._host.list(limit=_MOST_OF_HOST))
        if len(runs) == _MOST_OF_HOST:
            self._problems.append(f"Only the newest {_MOST_OF_HOST} runs of the host are listed.")
        for run in runs:
            yield ListedRun(summary_as_json(run, time.time()), find=partial(self._lookup.on_host, run.run_id))

    def _here(self) -> Iterator[ListedRun]:
        before, self._ended = self._ended, {}
        for folder in () if self._output_dir is None else find_runs(self._output_dir):
            try:
                file = os.stat(folder / EVENTS_FILE)
                stamp, run = before.get(folder, (None, ListedRun({})))
                if stamp != (file.st_mtime_ns, file.st_size):
                    record = RunReader(folder).read()
                    self._problems += record.corrupt
                    results = _by_stage((without_indices(end.name), end.measures) for end in record.run.ends)
                    run = ListedRun(run_as_json(record), results, find=lambda folder=folder, **_: RunReader(folder))
                if run.row["state"] != State.RUNNING:
                    self._ended[folder] = ((file.st_mtime_ns, file.st_size), run)
                yield run
            except (TorchxKfpError, OSError) as error:
                self._problems.append(f"Left out: {error}")


def _by_stage(found: Iterable[tuple[str, Mapping[str, Any]]]) -> Results:
    results: dict[tuple[str, str], list[Any]] = {}
    for stage, values in found:
        for name, value in values.items():
            if isinstance(value, str | int | float):
                results.setdefault((stage, name), []).append(value)
    return results


_TEMPLATE = Path(__file__).parent / "page.html"
_THIS_MACHINE = re.compile(r"(127\.0\.0\.1|localhost)(:\d{1,5})?")
#: The most runs on a page, the most columns of results, and the fewest and most compared runs.
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
    """A rejected request: an HTTP status, and a message with the reason."""


class Application:
    """Answers requests for the page."""

    def __init__(self, lookup: Lookup, token: str) -> None:
        self._token, self._runs = token.encode(), Runs(lookup)

    def __call__(self, environ: Mapping[str, Any], start_response: Callable[..., object]) -> list[bytes]:
        """Answer a WSGI request."""
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
        """Return the requested page.

        Raises:
            _RefusedError: the request is from elsewhere, would change something, or names an unknown page.
        """
        if not _THIS_MACHINE.fullmatch(environ.get("HTTP_HOST", "")):
            raise _RefusedError(HTTPStatus.FORBIDDEN, "Only requests for 127.0.0.1 or localhost are answered.\n")
        token, slash, name = environ.get("PATH_INFO", "").removeprefix("/").partition("/")
        if not secrets.compare_digest(token.encode("latin-1", "replace"), self._token):
            raise _RefusedError(HTTPStatus.FORBIDDEN, "The address lacks the token that `torchx-kfp ui` printed.\n")
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
        parameters = {"name": "", "state": "", "sort": "", "page": "", **dict(query)}
        where = [value for name, value in query if name == "where"]
        try:
            values = {key: run.values for key, run in runs.items()}
            keys = select(values, list(map(parse_comparison, where)), list(filter(None, [parameters["sort"]])))
            keys = [key for key in keys if runs[key].is_called(parameters["name"])]
            keys = [key for key in keys if parameters["state"] in ("", runs[key].row["state"])]
        except click.UsageError as error:
            keys, problems = [], [error.message, *problems]
        number = int(parameters["page"]) if re.fullmatch("[1-9][0-9]{0,5}", parameters["page"]) else 1
        shown = {key: runs[key] for key in keys[_PAGE * (number - 1) : _PAGE * number]}
        # Results in filters and sort keys come first, and texts, such as long URLs, last.
        texts = {name: not is_number(its[0]) for run in shown.values() for name, its in run.results.items()}
        named = " ".join([parameters["sort"], *where])
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
            given={**parameters, "where": where},
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
            raise click.UsageError(f"Only records of {run.row['run']} are known, not the run itself.")
        return render(read_for_page(run.find()), None)

    def _run(self, key: str) -> ListedRun:
        runs, _ = self._runs.read()
        if key not in runs:
            raise _RefusedError(HTTPStatus.NOT_FOUND, "There is no such run.\n")
        return runs[key]


def _fill(problems: Sequence[str], **content: Any) -> str:
    empty: dict[str, Any] = {"places": (), "runs": None, "compared": None, "show": show_values, "printable": printable}
    return fill(_TEMPLATE, forms="'self'", problems=problems, **{**empty, **content})

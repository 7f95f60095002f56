"""Runs on a KFP host: submit, find and list them."""

from __future__ import annotations

import datetime
import itertools
import json
import os
import re
import shlex
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from torchx_kfp.common.text import UUID, did_you_mean, listed, moment, printable
from torchx_kfp.errors import ArgumentError, HostAnswerLostError, HostError, UnknownRunError
from torchx_kfp.execution.host.answers import as_object, as_text, refuse_run_id
from torchx_kfp.execution.host.connection import V2BETA1, Connection
from torchx_kfp.execution.host.settings import Submission
from torchx_kfp.execution.host.states import run_state, seconds, words_of
from torchx_kfp.execution.host.storage import submitted_documents
from torchx_kfp.execution.pipeline.spec import Pipeline
from torchx_kfp.execution.pipeline.values import complete_arguments
from torchx_kfp.execution.pipeline.walk import LATEST
from torchx_kfp.execution.runs.vocabulary import RUN_STATES, State
from torchx_kfp.execution.runs.watch import Terminal, ending_signals, raise_for_signal


@dataclass(frozen=True)
class RunFilter:
    """Selects the runs of a host that meet all conditions.

    Attributes:
        states: select runs in any of these states, such as ``"failed"``.
        name: select runs with this text in their names in KFP's UI, ignoring case.
        newer_than: select runs created less than this many seconds ago.
        archived: also select archived runs.
    """

    states: Collection[str] = ()
    name: str = ""
    newer_than: float | None = None
    archived: bool = False

    def __post_init__(self) -> None:
        """Check the states.

        Raises:
            ArgumentError: a state is unknown.
        """
        for state in self.states:
            if state not in RUN_STATES:
                raise ArgumentError(
                    f"No run is {str(state)!r}.{did_you_mean(state, map(str, RUN_STATES))} "
                    f"States: {', '.join(map(str, RUN_STATES))}."
                )

    def query(self, now: float) -> str:
        """Return the filter for KFP's API; empty if it selects all runs."""
        found: list[dict[str, Any]] = []
        # A run that has not started may lack a state.
        if self.states and State.QUEUED not in self.states:
            words = sorted({word for state in self.states for word in words_of(State(state))})
            found.append(_predicate("IN", "state", stringValues={"values": words}))
        if self.name:
            found.append(_predicate("IS_SUBSTRING", "display_name", stringValue=self.name))
        if self.newer_than is not None:
            oldest = datetime.datetime.fromtimestamp(int(now - self.newer_than), datetime.timezone.utc)
            text = oldest.strftime("%Y-%m-%dT%H:%M:%SZ")
            found.append(_predicate("GREATER_THAN_EQUALS", "created_at", timestampValue=text))
        if not self.archived:
            found.append(_predicate("NOT_EQUALS", "storage_state", stringValue="ARCHIVED"))
        return _query(found) if found else ""

    def selects(self, state: State, name: str, age: float) -> bool:
        """Return whether the filter selects a local run."""
        return (
            (not self.states or state in self.states)
            and self.name.lower() in name.lower()
            and (self.newer_than is None or age < self.newer_than)
        )


def of_name(name: str) -> str:
    """Return the filter for objects named this."""
    return _query([_predicate("EQUALS", "display_name", stringValue=name)])


def in_id(part: str) -> str:
    """Return the filter for runs with this text in their ids."""
    return _query([_predicate("IS_SUBSTRING", "run_id", stringValue=part)])


def _predicate(operation: str, key: str, **value: Any) -> dict[str, Any]:
    return {"operation": operation, "key": key, **value}


def _query(predicates: list[dict[str, Any]]) -> str:
    return json.dumps({"predicates": predicates})


#: The variable of kfp.Client that puts all runs into one experiment, regardless of their own.
OVERRIDE_EXPERIMENT = "KF_PIPELINES_OVERRIDE_EXPERIMENT_NAME"
#: The experiment of runs without one, as in kfp.Client.
DEFAULT_EXPERIMENT = "Default"

_RUNS, _EXPERIMENTS = f"{V2BETA1}/runs", f"{V2BETA1}/experiments"
#: The URL of a run's page, or TorchX's handle of an app. Names of other runs may contain a run id as well.
_URL_OF_RUN = re.compile(rf"[a-z]+://.*/({UUID.pattern})(?:[/?&#].*)?")
#: The beginning of a run id that is long enough to identify it.
_BEGINNING = re.compile(r"[0-9a-f]{4,8}(?:-[0-9a-f-]*)?")
_SHORT, _TOO_SHORT = re.compile("[0-9a-f]{1,3}"), " Give at least 4 characters of an id."
#: The number of runs that are searched for a name.
_LOOKED_AT = 300
#: The number of objects on a page of a list, as each run comes with its whole pipeline, and of pages at most.
_PAGE, _MOST_PAGES = 50, 1000
#: The options of a run that sets none.
DEFAULT = Submission()
UNARCHIVED, ANY_RUN = RunFilter(), RunFilter(archived=True)


@dataclass(frozen=True)
class RunSummary:
    """A run in a list of runs.

    Times are in seconds since the epoch; ``created`` is 0 if it is unknown, ``finished`` is None if the run
    has not ended.
    """

    run_id: str
    name: str
    pipeline: str
    state: State
    created: float
    finished: float | None
    link: str


class Host:
    """The runs of a KFP host."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def submit(
        self,
        pipeline: Pipeline,
        arguments: Mapping[str, Any] | None = None,
        submission: Submission = DEFAULT,
    ) -> str:
        """Start a run and return its id.

        If a signal ends this process while the host creates the run, a message on stderr says how to find the run
        before KeyboardInterrupt or SystemExit is raised.

        Args:
            pipeline: the pipeline; its ``text`` is submitted.
            arguments: values of its parameters. The host fills in defaults.
            submission: the other options of the run.

        Raises:
            ArgumentError: the arguments do not fit the parameters.
            HostAnswerLostError: the host may have accepted the run, but did not confirm it.
            HostError: the host does not answer or refuses the run.
        """
        fields = self._body(pipeline, arguments, submission)
        name = submission.name or f"{pipeline.name} {time.strftime('%Y-%m-%d %H-%M-%S')}"
        words = shlex.join(self.words)
        if_lost = (
            f"The host may have accepted the run {printable(name)!r}. Before you submit it again, look "
            f"for this name: torchx-kfp runs {words}"
        )

        def end(number: int) -> None:
            Terminal(sys.stderr).write_lines([if_lost])
            raise_for_signal(number)

        with ending_signals(end):
            run_id = self.connection.post(_RUNS, {"display_name": name, **fields}, if_lost=if_lost).get("run_id")
        try:
            refuse_run_id(run_id, f"POST {self.connection.name}{_RUNS}")
        except HostError as error:
            raise HostAnswerLostError(f"{error} {if_lost}") from None
        return str(run_id)

    def _body(self, pipeline: Pipeline, arguments: Mapping[str, Any] | None, submission: Submission) -> dict[str, Any]:
        """Return the request for a run, without its name; the experiment is created if it does not exist."""
        given = dict(arguments or {})
        values = complete_arguments(pipeline, given)
        spec, platform = submitted_documents(pipeline, self.connection.settings, cache=submission.cache)
        wanted = os.environ.get(OVERRIDE_EXPERIMENT) or submission.experiment or self.connection.settings.experiment
        body: dict[str, Any] = {
            "experiment_id": self._experiment_id(wanted or DEFAULT_EXPERIMENT),
            "runtime_config": {"parameters": {key: values[key] for key in given if key in values}},
            "pipeline_spec": {"pipeline_spec": spec, "platform_spec": platform} if platform else spec,
        }
        if submission.pipeline_root:
            body["runtime_config"]["pipeline_root"] = submission.pipeline_root
        if submission.service_account:
            body["service_account"] = submission.service_account
        return body

    @property
    def words(self) -> list[str]:
        """The options with which commands find this host."""
        settings = self.connection.settings
        if settings.kube_context and not settings.host:
            host = ["--kube-context", settings.kube_context]
        else:
            host = ["--host", self.connection.name]
        return [*host, *(["-n", settings.namespace] if settings.namespace else [])]

    def find(self, name: str) -> str:
        """Return the id of a run.

        Args:
            name: the run's id, at least 4 characters of its beginning, its name in KFP's UI, the URL of its page there,
                or ``latest``.

        Raises:
            UnknownRunError: no run has this name, or several runs do.
            HostError: the host does not answer.
        """
        wanted = name.strip()
        if UUID.fullmatch(wanted.lower()):
            return wanted.lower()
        if url := _URL_OF_RUN.fullmatch(wanted.lower()):
            self._verify_is_of_host(wanted, url[1])
            return url[1]
        if wanted == LATEST:
            newest = next(self.list(limit=1), None)
            if newest is None:
                place = f"{self.connection.name}{self.in_namespace()}"
                raise UnknownRunError(f"There is no run on {place} that is not archived.")
            return newest.run_id
        matches = [run for run in self._looked_up(of_name(wanted)) if run.name == wanted]
        begin = wanted.lower()
        if not matches and _BEGINNING.fullmatch(begin):
            matches = [run for run in self._looked_up(in_id(begin)) if run.run_id.startswith(begin)]
        if not matches:
            recent = list(self.list(ANY_RUN, limit=_PAGE))
            names = dict.fromkeys([LATEST, *(name for run in recent for name in (run.name, run.run_id))])
            newest_runs = listed(_described(run) for run in recent)
            raise UnknownRunError(
                f"There is no run {name!r} on {self.connection.name}{self.in_namespace()}."
                f"{_TOO_SHORT if _SHORT.fullmatch(begin) else did_you_mean(wanted, names)} "
                + (f"Its runs, newest first: {newest_runs}." if recent else "It has no runs at all.")
            )
        if len(matches) > 1:
            raise UnknownRunError(
                f"{name!r} matches {len(matches):,} runs on {self.connection.name}: "
                f"{listed(_described(run) for run in matches)}. Give the beginning of an id; the "
                f"newest is {matches[0].run_id}."
            )
        return matches[0].run_id

    def _verify_is_of_host(self, url: str, run_id: str) -> None:
        """Raise UnknownRunError if the URL of a run's page belongs to another host."""
        settings = self.connection.settings
        known = {urlsplit(each).netloc.lower() for each in (settings.host, settings.ui_host) if each}
        if url.lower().startswith("http") and known and urlsplit(url).netloc.lower() not in known:
            raise UnknownRunError(
                f"{printable(url)} is on another host than {self.connection.name}. Name that one with --host, or, if "
                f"both are the same host, give the run's id: {run_id}."
            )

    def list(self, where: RunFilter = UNARCHIVED, *, limit: int | None = None) -> Iterator[RunSummary]:
        """Yield runs, newest first, a page at a time.

        Args:
            where: which runs; by default, all that are not archived.
            limit: the maximum number of runs.

        Raises:
            HostError: the host does not answer.
        """
        # For the host, canceled runs have failed.
        runs = self._runs(where.query(time.time()), limit)
        return itertools.islice((run for run in runs if not where.states or run.state in where.states), limit)

    def _objects(
        self, path: str, key: str, query: str = "", *, limit: int | None = None
    ) -> Iterator[Mapping[str, Any]]:
        """Yield the JSON objects of a list in the user's namespace, newest first, a page at a time.

        Args:
            key: where a response has the objects.
            query: a filter: see ``RunFilter.query``.
            limit: the number of objects that the caller wants, if known: the first page has no more.

        Raises:
            HostError: the host does not answer.
        """
        size, token = _PAGE if limit is None else min(limit, _PAGE), ""
        first = {"sort_by": "created_at desc", "filter": query}
        for _ in range(_MOST_PAGES):
            # A token implies order and filter. KFP rejects a repeated filter with lists or times as a different one.
            asked = {"page_token": token} if token else first
            page = self.connection.get(path, page_size=size, namespace=self.connection.namespace, **asked)
            content = page.get(key)
            objects = [each for each in (content if isinstance(content, list) else ()) if isinstance(each, Mapping)]
            yield from objects
            token, before = str(page.get("next_page_token") or ""), token
            if token in ("", before) or not objects:
                return
            size = _PAGE

    def _runs(self, query: str, limit: int | None = None) -> Iterator[RunSummary]:
        objects = self._objects(_RUNS, "runs", query, limit=limit)
        return (self._summary(run) for run in objects if run.get("run_id"))

    def _summary(self, run: Mapping[str, Any]) -> RunSummary:
        run_id = str(run["run_id"])
        refuse_run_id(run_id, f"GET {self.connection.name}{_RUNS}")
        info = as_object(_spec_of(run), "pipelineInfo")
        return RunSummary(
            run_id=run_id,
            name=str(run.get("display_name") or ""),
            pipeline=as_text(info.get("name")),
            state=run_state(run),
            created=seconds(run.get("created_at")) or 0.0,
            finished=seconds(run.get("finished_at")),
            link=self.connection.link(run_id),
        )

    def _looked_up(self, query: str) -> Iterator[RunSummary]:
        """Yield the newest runs for a name."""
        return itertools.islice(self._runs(query), _LOOKED_AT)

    def _experiment_id(self, name: str) -> str:
        if found := self._find_experiment(name):
            return found
        body = {"display_name": name}
        if namespace := self.connection.namespace:
            body["namespace"] = namespace
        try:
            return str(self.connection.post(_EXPERIMENTS, body).get("experiment_id") or "")
        except HostError:
            # Another process may have created it meanwhile, or this one, if the answer was lost.
            if found := self._find_experiment(name):
                return found
            raise

    def _find_experiment(self, name: str) -> str:
        experiments = self._objects(_EXPERIMENTS, "experiments", of_name(name))
        return next(
            (as_text(each.get("experiment_id")) for each in experiments if each.get("display_name") == name), ""
        )

    def in_namespace(self) -> str:
        namespace = self.connection.namespace
        return f" in the namespace {namespace!r}" if namespace else ""


def _spec_of(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the PipelineSpec in the JSON of a run; empty if it refers to a stored pipeline."""
    spec = as_object(answer.get("pipeline_spec"))
    return as_object(spec.get("pipeline_spec", spec))


def _described(run: RunSummary) -> str:
    when = f" of {moment(run.created)}" if run.created else ""
    return f"{printable(run.name)!r} ({run.run_id}{when})"

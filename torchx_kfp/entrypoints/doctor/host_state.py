"""Checks of a KFP host: whether it answers, what it serves, and what this user may do there. Nothing is changed on it.

The rights are asked for with requests that cannot succeed: a run whose pipeline is not one (KFP checks rights before
it reads the pipeline: ``server/run_server.go``), and to end a run that does not exist.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote

from torchx_kfp.common.text import duration, listed
from torchx_kfp.entrypoints.doctor.verdicts import Verdict, guarded, missing, ok, said, skipped, warning
from torchx_kfp.errors import (
    HostAnswerLostError,
    HostCredentialsError,
    HostError,
    HostNotFoundError,
    HostSettingsError,
    HostUnreachableError,
)
from torchx_kfp.execution.host.answers import Answer
from torchx_kfp.execution.host.connection import V1ALPHA1, V1BETA1, V2BETA1, Connection
from torchx_kfp.execution.host.manifest import manifest_of

#: No run has this id.
_NOBODY = "00000000-0000-0000-0000-000000000000"
#: The clocks of the host and of this machine may differ by these seconds; beyond the second, most tokens and the
#: requests of S3 are refused.
_LATE, _TOO_LATE = 30.0, 300.0
#: The oldest backend that is supported.
_OLDEST = (2, 14)
#: A pipeline that is none, as in the recording ``create-broken-spec``.
_BROKEN = {"root": 1}
#: What KFP's health has one of: that of its API server, or that of its UI, which stands in for it.
_HEALTH = {"commit_sha", "tag_name", "multi_user", "apiServerReady"}
_NEEDS_NAMESPACE = (
    "Give that of your profile: --namespace NAME, TORCHX_KFP_NAMESPACE, or namespace in the settings file."
)


def check_host(connection: Connection, now: Callable[[], float] = time.time) -> Iterator[Verdict]:
    """Yield verdicts about a host. If it does not answer, nothing else is asked.

    Args:
        connection: the host.
        now: this machine's clock, in seconds since the epoch.
    """
    try:
        answer = connection.ask(f"{V2BETA1}/healthz")
        health = answer.json()
        if not _HEALTH & health.keys():
            raise HostUnreachableError(
                f"{connection.name}{V2BETA1}/healthz is not KFP's: it has {listed(map(repr, health)) or 'nothing'}. "
                "Check the host and its port."
            )
    except HostError as error:
        settings = connection.settings
        if isinstance(error, HostSettingsError) and not (settings.host or settings.kube_context):
            yield skipped("host", "None is given: --host URL, TORCHX_KFP_HOST, or host in the settings file.")
            return
        yield missing("host", said(error))
        yield skipped(
            "version, clock, login, namespace, APIs, rights and pipeline root", "The host does not answer as KFP."
        )
        return
    if "multi_user" not in health and "apiServerMultiUser" in health:  # of an older UI
        health["multi_user"] = health["apiServerMultiUser"]
    yield ok("host", f"{connection.name} answers.")
    yield from _of_version(health)
    yield from _of_clock(answer, now())
    runs: list[Mapping[str, Any]] = []
    is_in = False
    for verdict in guarded("login and namespace", lambda: _of_login(connection, health, runs)):
        is_in = verdict.subject == "login and namespace" and verdict.level.value == "ok"
        yield verdict
    if not is_in:
        yield skipped("APIs, rights and pipeline root of the host", "The list of runs cannot be read.")
        return
    run_id = str(runs[0].get("run_id") or _NOBODY) if runs else _NOBODY
    for subject, check in (
        ("API v1beta1 and pipeline root", lambda: _of_v1beta1(connection, run_id)),
        ("API v1alpha1", lambda: _of_v1alpha1(connection)),
        ("right to run", lambda: _of_right_to_run(connection, health)),
        ("right to cancel", lambda: _of_right_to_cancel(connection)),
    ):
        yield from guarded(subject, check)


def _of_version(health: Mapping[str, Any]) -> Iterator[Verdict]:
    # KFP's UI answers in place of the API server, with other names.
    if health.get("apiServerReady") is False:
        yield missing(
            "version",
            "KFP's UI answers, but its API server does not.",
            "An administrator finds out why: kubectl -n kubeflow get pods -l app=ml-pipeline",
        )
        return
    tag = str(health.get("tag_name") or health.get("apiServerTagName") or "unknown")
    users = "several users" if health.get("multi_user") else "one user"
    version = re.match(r"v?(\d+)\.(\d+)", tag)
    if version and (int(version[1]), int(version[2])) >= _OLDEST:
        yield ok("version", f"KFP {tag.removeprefix('v')}, for {users}.")
    elif version:
        judge = missing if int(version[1]) < _OLDEST[0] else warning
        yield judge(
            "version", f"KFP {tag}, for {users}.", "torchx-kfp is for KFP 2 from 2.14 on, and was tested on 2.17."
        )
    else:
        yield ok("version", f"KFP for {users}; this build does not say its version.")


def _of_clock(answer: Answer, now: float) -> Iterator[Verdict]:
    try:
        there = parsedate_to_datetime(answer.headers.get("Date", "")).timestamp()
    except (TypeError, ValueError, OverflowError):
        yield skipped("clock", "The host's answers have no date.")
        return
    apart = now - there
    if abs(apart) <= _LATE:
        yield ok("clock", "This machine and the host agree.")
        return
    found = f"This machine's clock is {duration(abs(apart))} {'ahead of' if apart > 0 else 'behind'} the host's."
    way_out = "Set the clock of the one that is wrong (timedatectl, chrony). Tokens and S3's signatures have times."
    yield (missing if abs(apart) > _TOO_LATE else warning)("clock", found, way_out)


def _of_login(connection: Connection, health: Mapping[str, Any], runs: list[Mapping[str, Any]]) -> Iterator[Verdict]:
    """Yield verdicts about the list of the user's runs, of which ``runs`` gets the newest."""
    subject = "login and namespace"
    namespace = connection.namespace
    if health.get("multi_user") and not namespace:
        yield missing(subject, "The host has several users, and no namespace is given.", _NEEDS_NAMESPACE)
        return
    page = connection.get(f"{V2BETA1}/runs", page_size=1, sort_by="created_at desc", namespace=namespace)
    found = page.get("runs")
    runs += [run for run in found if isinstance(run, dict)] if isinstance(found, list) else []
    where = f"in the namespace {namespace!r}" if namespace else "without a namespace"
    yield ok(subject, f"Runs can be listed {where}; there {'are some' if runs else 'is none yet'}.")


def _is_unknown_path(error: HostNotFoundError) -> bool:
    """Tell whether a 404 is about the path, rather than about the run that KFP has not found."""
    return "Is this the URL of a KFP host?" in str(error)


def _of_v1beta1(connection: Connection, run_id: str) -> Iterator[Verdict]:
    lost = "The states of stages, their results and logs cannot be shown, only the state of a run."
    answer: Mapping[str, Any] = {}
    try:
        answer = connection.get(f"{V1BETA1}/runs/{quote(run_id, safe='')}")
    except HostNotFoundError as error:
        if _is_unknown_path(error):
            yield warning("API v1beta1", f"The host does not serve it. {lost}")
            yield skipped("pipeline root", "Only v1beta1 tells it.")
            return
    except HostUnreachableError:
        raise
    except HostError as error:
        yield warning("API v1beta1", f"{said(error)} {lost}")
        yield skipped("pipeline root", "Only v1beta1 tells it.")
        return
    yield ok("API v1beta1", "The host serves it.")
    if root := artifacts_root(manifest_of(answer), run_id):
        yield ok("pipeline root", f"{root}, as the newest run has it.")
    else:
        yield skipped("pipeline root", "The newest run does not say where KFP stores artifacts.")


def artifacts_root(manifest: str, run_id: str) -> str:
    """Return where KFP stores the artifacts of a run, before the names of the pipeline and the run; empty if unknown.

    KFP's drivers write the URI of each artifact of a stage: ``<root>/<pipeline>/<run>/<task>/<id>/<artifact>``.
    """
    found = re.search(rf"([a-z][a-z0-9+.-]*://[^\s\"'\\]*)/[^/\s\"'\\]+/{re.escape(run_id)}/", manifest)
    return found[1] if found else ""


def _of_v1alpha1(connection: Connection) -> Iterator[Verdict]:
    subject, served = "API v1alpha1", ok("API v1alpha1", "The host serves logs.")
    try:
        connection.log(f"{V1ALPHA1}/runs/{_NOBODY}/nodes/none/log")
    except HostNotFoundError as error:
        yield (
            warning(subject, "The host does not serve it, so logs cannot be read.")
            if _is_unknown_path(error)
            else served
        )
        return
    except (HostUnreachableError, HostCredentialsError) as error:
        yield warning(subject, f"{said(error)} Logs cannot be read.")
        return
    except HostError:  # KFP answers with 500 if it has no such log
        pass
    yield served


def _of_right_to_run(connection: Connection, health: Mapping[str, Any]) -> Iterator[Verdict]:
    subject = "right to run"
    page = connection.get(f"{V2BETA1}/experiments", page_size=1, namespace=connection.namespace)
    found = page.get("experiments")
    first = found[0] if isinstance(found, list) and found and isinstance(found[0], dict) else {}
    if health.get("multi_user") and not first:
        yield skipped(subject, "The namespace has no experiment yet, which a run needs: --run makes one.")
        return
    body = {"display_name": "torchx-kfp doctor (not a run)", "pipeline_spec": _BROKEN}
    body |= {"experiment_id": first["experiment_id"]} if first.get("experiment_id") else {}
    try:
        made = connection.post(f"{V2BETA1}/runs", body)
    except HostCredentialsError as error:
        yield missing(subject, said(error), "Ask an administrator for the right to edit in this namespace.")
    except HostError as error:
        is_about_pipeline = "pipeline spec" in str(error).lower()
        if is_about_pipeline:
            yield ok(subject, "The host takes runs: it looks at the pipeline, which is a broken one.")
        else:
            lost = isinstance(error, HostAnswerLostError)
            yield warning(subject, f"The host does not say: {said(error)}" if lost else said(error))
    else:
        connection.delete(f"{V2BETA1}/runs/{quote(str(made.get('run_id')), safe='')}")
        yield ok(subject, "The host takes runs.")


def _of_right_to_cancel(connection: Connection) -> Iterator[Verdict]:
    subject = "right to cancel"
    taken = ok(subject, "The host takes requests to end runs.")
    try:
        connection.post(f"{V2BETA1}/runs/{_NOBODY}:terminate")
    except HostNotFoundError as error:
        yield warning(subject, "The host does not know the request.") if _is_unknown_path(error) else taken
        return
    except HostCredentialsError as error:
        yield missing(subject, said(error), "Ask an administrator for the right to edit in this namespace.")
        return
    yield taken

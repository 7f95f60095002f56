"""Requests to a host of tests with the standard library, and what recorded answers are compared by."""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any

from tests.fake_kfp import KfpHost

PATH = "/apis/v2beta1/runs"


def request(
    host: KfpHost, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
) -> tuple[int, Any]:
    """Return the status and the answer to a request: JSON, or text."""
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(host.url + path, data, dict(headers or {}), method=method)
    try:
        with urllib.request.urlopen(asked, timeout=120) as answer:
            status, content, kind = answer.status, answer.read(), answer.headers.get_content_type()
    except urllib.error.HTTPError as error:
        with error:
            status, content, kind = error.code, error.read(), error.headers.get_content_type()
    return status, json.loads(content) if kind == "application/json" else content.decode()


def get(host: KfpHost, path: str) -> Any:
    """Return the answer to a request that succeeds."""
    status, answer = request(host, "GET", path)
    assert status == 200, answer
    return answer


def submit(host: KfpHost, spec: Any, arguments: Mapping[str, Any], name: str = "test") -> str:
    """Submit a pipeline and return the run's id."""
    body = {"display_name": name, "pipeline_spec": spec, "runtime_config": {"parameters": dict(arguments)}}
    status, answer = request(host, "POST", PATH, body)
    assert status == 200, answer
    run_id: str = answer["run_id"]
    return run_id


def wait_until(true: Callable[[], Any], seconds: float = 120) -> Any:
    """Return the value of the function as soon as it is true."""
    deadline = time.monotonic() + seconds
    while not (value := true()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
    return value


def ended(host: KfpHost, run_id: str) -> dict[str, Any]:
    """Wait for the end of a run and return the last answer about it."""

    def answer() -> Any:
        said = get(host, f"{PATH}/{run_id}")
        return said if said.get("state") in ("SUCCEEDED", "FAILED") else None

    said: dict[str, Any] = wait_until(answer)
    return said


def shape(value: Any) -> Any:
    """Return the kinds of all values in an answer, by their keys; those of a list's items as a set."""
    if isinstance(value, dict):
        return frozenset((key, shape(item)) for key, item in value.items())
    if isinstance(value, list):
        return ("list", frozenset(map(shape, value)))
    if isinstance(value, str):
        return next(name for name, pattern in _TEXTS.items() if re.fullmatch(pattern, value, re.DOTALL))
    return "number" if type(value) in (int, float) else type(value).__name__


_TEXTS = {
    "time": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ",
    "uuid": r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    "digits": r"-?\d+",
    "word": r"[A-Z_]+",
    "text": ".*",
}

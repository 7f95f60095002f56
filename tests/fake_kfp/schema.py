"""Requests and answers, compared with the description of KFP's API (Swagger 2.0)."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from jsonschema import Draft4Validator, FormatChecker

_RECORDED = Path(__file__).parents[1] / "recorded" / "kfp"
_formats = FormatChecker(formats=())


@_formats.checks("date-time", raises=ValueError)
def _is_time(value: object) -> bool:
    return isinstance(value, str) and value.endswith("Z") and bool(datetime.fromisoformat(value[:-1]))


@_formats.checks("int64")
def _is_int64(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch("-?[0-9]+", value) is not None


@functools.cache
def _swagger(version: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((_RECORDED / f"{version}.swagger.json").read_text(encoding="utf-8"))
    for name, definition in content["definitions"].items():
        # Nothing else is in a message, except in one of any type.
        if "properties" in definition and "additionalProperties" not in definition and name != "protobufAny":
            definition["additionalProperties"] = False
    if version == "v2beta1":
        # The recorded host sends two fields that its description does not have.
        text = {"type": "string"}
        content["definitions"]["v2beta1GetHealthzResponse"]["properties"] |= {"commit_sha": text, "tag_name": text}
    return content


@functools.cache
def _routes(version: str) -> list[tuple[re.Pattern[str], Mapping[str, Any]]]:
    return [
        (re.compile(re.sub(r"\\{\w+\\}|{\w+}", "[^/:]+", path)), operations)
        for path, operations in _swagger(version)["paths"].items()
    ]


def request_problems(method: str, path: str, query: Mapping[str, str], body: Any) -> list[str]:
    """Return what is wrong with a request, in sentences."""
    operation = _operation(method, path)
    if operation is None:
        return [f"There is no {method} {path}."]
    problems = []
    known = {each["name"]: each for each in operation.get("parameters", ()) if each["in"] == "query"}
    for name, value in query.items():
        if name not in known:
            problems.append(f"{method} {path} has no parameter {name!r}.")
        elif known[name]["type"] == "integer" and not re.fullmatch("-?[0-9]+", value):
            problems.append(f"{method} {path}: {name} must be an integer, but is {value!r}.")
    schema = next((each["schema"] for each in operation.get("parameters", ()) if each["in"] == "body"), None)
    if schema is None and body is not None:
        problems.append(f"{method} {path} has no body.")
    return problems + (_check(_version(path), schema, body, f"{method} {path}") if schema is not None else [])


def answer_problems(method: str, path: str, status: int, answer: Any) -> list[str]:
    """Return what is wrong with an answer, in sentences."""
    operation = _operation(method, path)
    if operation is None:
        return []
    responses = operation["responses"]
    schema = responses.get(str(status), responses["default"])["schema"]
    return _check(_version(path), schema, answer, f"The answer {status} to {method} {path}")


def _version(path: str) -> str:
    return path.split("/")[2]


def _operation(method: str, path: str) -> Mapping[str, Any] | None:
    if _version(path) not in ("v1beta1", "v2beta1"):
        return None
    found = (operations for pattern, operations in _routes(_version(path)) if pattern.fullmatch(path))
    return next((each[method.lower()] for each in found if method.lower() in each), None)


@functools.cache
def _validator(version: str, schema: str) -> Draft4Validator:
    content = {**json.loads(schema), "definitions": _swagger(version)["definitions"]}
    return Draft4Validator(content, format_checker=_formats)


def _check(version: str, schema: Any, value: Any, what: str) -> list[str]:
    errors = list(_validator(version, json.dumps(schema)).iter_errors(value))
    places = ["/".join(map(str, error.absolute_path)) or "its top" for error in errors]
    return [f"{what}: {error.message[:300]} (at {place})" for error, place in zip(errors, places, strict=True)]

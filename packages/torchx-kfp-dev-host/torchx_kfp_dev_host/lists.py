"""Lists of the API: filters, order and pages."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_SIZE, _MOST = 20, 200
#: ``kfp.Client`` sends the number that an operation has in protobuf.
_COMPARED: Mapping[Any, Callable[[Any, Any], bool]] = {
    1: lambda have, want: have == want,
    "EQUALS": lambda have, want: have == want,
    "NOT_EQUALS": lambda have, want: have != want,
    "GREATER_THAN_EQUALS": lambda have, want: have >= want,
    "LESS_THAN_EQUALS": lambda have, want: have <= want,
    "IN": lambda have, want: have in want["values"],
    "IS_SUBSTRING": lambda have, want: want in have,
}


def page_of(items: Sequence[Mapping[str, Any]], query: Mapping[str, str], kind: str) -> dict[str, Any]:
    """Return the page of a list that a request asks for: ``runs`` or ``experiments``.

    Items of the same time are ordered by their ids. A page's token has the order and the filter of the first request.
    """
    key = f"{kind[:-1]}_id"
    token = query.get("page_token")
    asked = json.loads(base64.b64decode(token)) if token else query
    field, _, order = (asked.get("sort_by") or "created_at").partition(" ")
    kept = [item for item in items if _matches(item, asked.get("filter"))]
    ranked = sorted(kept, key=lambda item: (item.get(field, ""), item[key]), reverse=order == "desc")
    start = (
        next((index for index, item in enumerate(ranked) if item[key] == asked["first"]), len(ranked)) if token else 0
    )
    end = start + min(int(query.get("page_size", 0)) or _SIZE, _MOST)
    answer: dict[str, Any] = {kind: ranked[start:end], "total_size": len(kept)}
    if end < len(ranked):
        following = {**asked, "first": ranked[end][key]}
        answer["next_page_token"] = base64.b64encode(json.dumps(following).encode()).decode()
    return {name: value for name, value in answer.items() if value}


def _matches(item: Mapping[str, Any], text: str | None) -> bool:
    return all(_holds(item, predicate) for predicate in (json.loads(text)["predicates"] if text else ()))


def _holds(item: Mapping[str, Any], predicate: Mapping[str, Any]) -> bool:
    [want] = [value for name, value in predicate.items() if name not in ("key", "operation")]
    have = item[predicate["key"]]
    # The database does not distinguish upper and lower case.
    return _COMPARED[predicate["operation"]](have.lower(), json.loads(json.dumps(want).lower()))

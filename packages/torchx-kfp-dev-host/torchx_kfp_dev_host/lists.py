"""Lists of the API: filters, order and pages."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torchx_kfp_dev_host.errors import Refused

_SIZE, _MOST = 20, 200
_COMPARED: Mapping[str, Callable[[Any, Any], bool]] = {
    "EQUALS": lambda have, want: have == want,
    "NOT_EQUALS": lambda have, want: have != want,
    "GREATER_THAN_EQUALS": lambda have, want: have >= want,
    "LESS_THAN_EQUALS": lambda have, want: have <= want,
    "IN": lambda have, want: have in want["values"],
    "IS_SUBSTRING": lambda have, want: want in have,
}
#: The numbers that operations have in protobuf, which ``kfp.Client`` sends.
_NUMBERS = {1: "EQUALS", 2: "NOT_EQUALS", 5: "GREATER_THAN_EQUALS", 7: "LESS_THAN_EQUALS", 8: "IN", 9: "IS_SUBSTRING"}
#: The fields by which lists can be filtered, as in the source of KFP's API server; others are errors.
_FILTERED = {
    "runs": {
        *("run_id", "id", "display_name", "name", "created_at", "finished_at", "description", "scheduled_at"),
        *("storage_state", "status", "namespace", "experiment_id", "state", "pipeline_id"),
    },
    "experiments": {"experiment_id", "id", "display_name", "name", "created_at", "storage_state"},
}
#: Other names of fields.
_FIELDS = {"name": "display_name", "id": "run_id", "status": "state"}


def page_of(items: Sequence[Mapping[str, Any]], query: Mapping[str, str], key: str, kind: str) -> dict[str, Any]:
    """Return the page of a list that a request asks for.

    Args:
        items: all items.
        query: the parameters of the request.
        key: the field with an item's id, by which items with the same time are ordered.
        kind: the name of the list.
    """
    field, _, order = (query.get("sort_by") or "created_at").partition(" ")
    field, wanted = _FIELDS.get(field, field), query.get("filter", "")
    if (items and field not in items[0]) or order not in ("", "asc", "desc"):
        raise Refused(400, 3, "Failed to list: Invalid input error: Invalid sorting field: " + repr(field))
    is_newest_first, first = order == "desc", None
    if token := query.get("page_token"):
        try:
            content = json.loads(base64.b64decode(token, validate=True))
            first, asked = content["KeyFieldValue"], (content["SortByFieldName"], content["IsDesc"], content["Filter"])
        except (ValueError, KeyError, TypeError):
            raise Refused(400, 3, "Failed to list: Invalid input error: Invalid package token") from None
        # KFP finds lists and times in a token's filter different from the same ones in a request.
        is_same = asked == (field, is_newest_first, wanted) and not re.search('"(values|timestampValue)"', wanted)
        if (query.get("sort_by") or wanted) and not is_same:
            cause = (
                "page token does not match the supplied sort by and/or filtering criteria. Either specify the same "
                "criteria or leave the latter empty if page token is specified"
            )
            raise Refused(400, 3, f"Failed to create list options: Invalid input error: {cause}", cause)
        field, is_newest_first, wanted = asked
    kept = [item for item in items if _matches(item, wanted, kind)]
    ranked = sorted(kept, key=lambda item: (item.get(field, ""), item[key]), reverse=is_newest_first)
    start = 0
    if first is not None:
        start = next((index for index, item in enumerate(ranked) if item[key] == first), len(ranked))
    size = min(int(query.get("page_size", 0)) or _SIZE, _MOST)
    page = ranked[start : start + size]
    answer: dict[str, Any] = {kind: page, "total_size": len(kept)}
    if start + size < len(ranked):
        following = ranked[start + size]
        content = {
            "SortByFieldName": field,
            "SortByFieldValue": following.get(field),
            "KeyFieldName": "UUID",
            "KeyFieldValue": following[key],
            "IsDesc": is_newest_first,
            "Filter": wanted,
        }
        answer["next_page_token"] = base64.b64encode(json.dumps(content).encode()).decode()
    return {name: value for name, value in answer.items() if value}


def _matches(item: Mapping[str, Any], text: str, kind: str) -> bool:
    if not text:
        return True
    try:
        predicates = json.loads(text)["predicates"]
        for key in {predicate["key"] for predicate in predicates} - _FILTERED[kind]:
            raise Refused(400, 3, f"Failed to list: Invalid input error: no support for filtering on {key!r}")
        return all(_holds(item, predicate) for predicate in predicates)
    except (ValueError, KeyError, TypeError) as error:
        raise Refused(400, 3, f"Failed to list: Invalid input error: Failed to parse the filter: {error!r}") from None


def _holds(item: Mapping[str, Any], predicate: Mapping[str, Any]) -> bool:
    field = _FIELDS.get(predicate["key"], predicate["key"])
    want = next(value for name, value in predicate.items() if name not in ("key", "operation"))
    have = item.get(field, "")
    if isinstance(have, str):  # the database does not distinguish cases
        have, want = have.lower(), json.loads(json.dumps(want).lower())
    operation = predicate["operation"]
    return _COMPARED[_NUMBERS.get(operation, operation)](have, want)

"""Lists of a KFP host: runs, schedules and experiments, a page at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from torchx_kfp.execution.host.connection import Connection

NEWEST_FIRST = "created_at desc"
#: How many objects the host sends at once: a run comes with its whole pipeline.
PAGE = 50
#: How many pages are asked for at most.
_MOST_PAGES = 1000


def matching(key: str, value: str, operation: str = "EQUALS") -> str:
    """Return the filter for objects whose field has a value, as KFP's API takes it."""
    return json.dumps({"predicates": [{"operation": operation, "key": key, "stringValue": value}]})


def of_name(name: str) -> str:
    """Return the filter for objects with this name in KFP's UI."""
    return matching("display_name", name)


def objects(
    connection: Connection, path: str, key: str, query: str = "", *, limit: int | None = None, **asked: str
) -> Iterator[Mapping[str, Any]]:
    """Yield the JSON objects of a list, the newest first, a page at a time.

    Args:
        connection: the host.
        path: the path of the list.
        key: where an answer has the objects.
        query: a filter, as JSON.
        limit: how many objects the caller wants, if that is known: the first page has no more.
        asked: further parameters of the request.

    Raises:
        HostError: the host does not answer.
    """
    size, token = PAGE if limit is None else min(limit, PAGE), ""
    # A token has the order and the filter. Sent again, KFP refuses those with lists or times as different ones.
    order = {"sort_by": asked.pop("sort_by", NEWEST_FIRST), "filter": query}
    for _ in range(_MOST_PAGES):
        page = connection.get(path, page_token=token, page_size=size, **({} if token else order), **asked)
        content = page.get(key)
        found = [each for each in (content if isinstance(content, list) else ()) if isinstance(each, Mapping)]
        yield from found
        token, before = str(page.get("next_page_token") or ""), token
        if token in ("", before) or not found:
            return
        size = PAGE

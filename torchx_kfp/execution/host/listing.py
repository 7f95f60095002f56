"""Lists of a KFP host: runs, schedules, pipelines and experiments, a page at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torchx_kfp.errors import HostError, HostUnreachableError
from torchx_kfp.execution.host.connection import Connection

NEWEST_FIRST = "created_at desc"
#: How many objects the host sends at once: a run comes with its whole pipeline.
PAGE = 50
#: How many pages are asked for at most.
_MOST_PAGES = 1000


def named(name: str) -> str:
    """Return the filter for objects with this name in KFP's UI, as KFP's API takes it."""
    return json.dumps({"predicates": [{"operation": "EQUALS", "key": "display_name", "stringValue": name}]})


def objects(
    connection: Connection, path: str, key: str, query: str = "", *, limit: int | None = None, **asked: str
) -> Iterator[Mapping[str, Any]]:
    """Yield the JSON objects of a list, the newest first, or all of them if the host cannot filter.

    Args:
        connection: the host.
        path: the path of the list.
        key: where an answer has the objects.
        query: a filter, as JSON. Hosts that ignore it send other objects, too.
        limit: how many objects the caller wants, if that is known.
        asked: further parameters of the request.

    Raises:
        HostError: the host does not answer.
    """
    pages = _pages(connection, path, key, limit, {**asked, "filter": query})
    try:
        first = next(pages, ())
    except HostUnreachableError:
        raise
    except HostError:
        if not query:
            raise
        pages, first = _pages(connection, path, key, None, asked), ()
    yield from first
    for page in pages:
        yield from page


def _pages(
    connection: Connection, path: str, key: str, limit: int | None, asked: Mapping[str, str]
) -> Iterator[Sequence[Mapping[str, Any]]]:
    size, token = PAGE if limit is None else min(limit, PAGE), ""
    for _ in range(_MOST_PAGES):
        page = connection.get(path, **{"page_token": token, "page_size": size, "sort_by": NEWEST_FIRST, **asked})
        content = page.get(key)
        found = [each for each in (content if isinstance(content, list) else ()) if isinstance(each, Mapping)]
        yield found
        token, before = str(page.get("next_page_token") or ""), token
        if token in ("", before) or not found:
            return

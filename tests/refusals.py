"""The driver of tables of refusals: an error of the right class, whose message is for a user and has these facts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

from tests.facts import says

#: A call that is refused, and facts of the message: what is wrong, the value, and the way out.
Row = tuple[Any, ...]


def refused(table: Mapping[type[Exception], Iterable[Row]]) -> Any:
    """Return the decorator of a test that has the parameters ``error``, ``call`` and ``facts``, for rows by error."""
    rows = [(error, call, facts) for error, group in table.items() for call, *facts in group]
    ids = [" ".join(map(str, facts))[:70] for *_, facts in rows]
    return pytest.mark.parametrize(("error", "call", "facts"), rows, ids=ids)


def check_refusal(error: type[Exception], call: Callable[[], object], facts: Iterable[object]) -> str:
    """Assert that a call is refused, and return the message.

    The message consists of sentences without a traceback, and ``None`` is in it only where that is what was given.
    """
    with pytest.raises(error, match=says(*facts)) as caught:
        call()
    message = caught.value.args[0] if isinstance(caught.value, KeyError) else str(caught.value)
    assert "Traceback" not in message
    assert "None" not in message or any("None" in str(fact) for fact in facts), message
    assert message.endswith((".", "?", ".)")), message
    return str(message)

"""Values by name, for users: a name that does not exist is an error that suggests one that does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from torchx_kfp.errors import UnknownNameError
from torchx_kfp.text import did_you_mean, listed, shown

V = TypeVar("V")

#: The number of names that a message lists.
_LISTED = 20


class Named(dict[str, V]):
    """A dict that raises ``UnknownNameError``, a KeyError, for a name that does not exist.

    Args:
        values: the values by name.
        owner: the owner of the values, as the beginning of a sentence: ``The stage 'train'``.
        kind: the kind of value, such as ``result``.
    """

    def __init__(
        self, values: Mapping[str, V] | Iterable[tuple[str, V]] = (), owner: str = "This dict", kind: str = "name"
    ) -> None:
        super().__init__(values)
        self._owner = owner
        self._kind = kind

    def __missing__(self, name: object) -> V:
        raise UnknownNameError(describe_unknown(self._owner, self._kind, name, self))


def describe_unknown(owner: str, kind: str, name: object, known: Iterable[str]) -> str:
    """Return a message about a name that does not exist, with those that do.

    Args:
        owner: the owner of the values, as the beginning of a sentence: ``The stage 'train'``.
        kind: the kind of value, such as ``result``; with an ``s``, it is the plural.
        name: the name that does not exist.
        known: the names that exist.
    """
    names = list(known)
    there = f"Its {kind}s: {listed(map(repr, names), _LISTED)}." if names else "It has none."
    return f"{owner} has no {kind} {shown(name)}.{did_you_mean(name, names)} {there}"

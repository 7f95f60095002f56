"""Leave earlier attempts at stages out of what is shown, unless the user names one: see ``contract.protocol``."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from torchx_kfp.cli.display.printing import print_message
from torchx_kfp.contract.protocol import superseded
from torchx_kfp.errors import MissingResultsError
from torchx_kfp.text import listed, printable

if TYPE_CHECKING:
    from torchx_kfp.tracking.stores.store import Store


def last_attempts(
    store: Store, keys: Iterable[str], named: str, last: Collection[str] = (), further: Collection[str] = ()
) -> list[str]:
    """Return the run ids without those of earlier attempts, which are named on stderr.

    Args:
        store: the store of the tracker base.
        keys: the run ids.
        named: the part of run ids that the user has named, or the base; an attempt that is named itself is kept.
        last: run ids of last attempts: see ``superseded``.
        further: more run ids of the same runs, which may have followed these without any results.

    Raises:
        MissingResultsError: only earlier attempts have recorded anything.
    """
    keys = list(keys)
    shown = {*keys} - {named}
    earlier = earlier_attempts(store, {*keys, *further}, last) & shown
    if keys and earlier.issuperset(keys):
        raise MissingResultsError(
            f"The last attempts in {named!r} have recorded nothing. Earlier ones have: "
            f"{printable(listed(sorted(earlier)))}. Name one of them to see that."
        )
    if earlier:
        print_message(f"Left out, as those of earlier attempts: {printable(listed(sorted(earlier)))}.")
    return [key for key in keys if key not in earlier]


def earlier_attempts(store: Store, keys: Iterable[str], last: Collection[str] = ()) -> set[str]:
    """Return the run ids of attempts that other ones have followed: see ``superseded``."""

    @functools.cache
    def times(run: str) -> dict[str, float]:
        return {file.key: file.modified for file in store.files(run)}

    return superseded(keys, lambda key: times(key.partition("/")[0]).get(key, 0.0), last)

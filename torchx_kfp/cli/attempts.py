"""Tell the last attempts at stages from earlier ones, of which nothing is shown unless the user names one.

KFP retries a run with pods of the same names, and a stage starts its application again in one pod. An attempt is known
by the beginning of its pod's UID in its run id, and by the number after it (``contract.protocol``).
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from torchx_kfp.cli.display.printing import print_message
from torchx_kfp.contract.protocol import Execution
from torchx_kfp.errors import MissingResultsError
from torchx_kfp.text import listed, printable

if TYPE_CHECKING:
    from torchx_kfp.tracking.stores.store import Store


def last_attempts(store: Store, keys: Iterable[str], named: str, last: Collection[str] = ()) -> list[str]:
    """Return the run ids without those of earlier attempts, which are named on stderr.

    Args:
        store: the store of the tracker base.
        keys: the run ids.
        named: the part of run ids that the user has named; an attempt that is named itself is kept.
        last: see ``earlier_attempts``.

    Raises:
        MissingResultsError: only earlier attempts have recorded anything.
    """
    keys = list(keys)
    earlier = earlier_attempts(store, keys, last) - {named}
    if keys and earlier.issuperset(keys):
        raise MissingResultsError(
            f"The last attempts in {named!r} have recorded nothing. Earlier ones have: "
            f"{printable(listed(sorted(earlier)))}. Name one of them to see that."
        )
    if earlier:
        print_message(f"Left out, as those of earlier attempts: {printable(listed(sorted(earlier)))}.")
    return [key for key in keys if key not in earlier]


def earlier_attempts(store: Store, keys: Iterable[str], last: Collection[str] = ()) -> set[str]:
    """Return the run ids of attempts that other ones have followed.

    Args:
        store: the store of the tracker base.
        keys: the run ids.
        last: the run ids of last attempts that the run has told. One that has recorded no results may lack the UID.
            For other stages, the last attempt is the one with the highest number in the pod that has recorded last.
    """
    from torchx_kfp.tracking.stores.keys import run_id_parts

    @functools.cache
    def times(run: str) -> dict[str, float]:
        return {file.key: file.modified for file in store.files(run)}

    told = {_pod(key): key for key in last}
    attempts: dict[str, dict[str, Execution]] = {}
    for key in filter(run_id_parts, keys):
        attempts.setdefault(_pod(key), {})[key] = Execution.parse(key)
    earlier: set[str] = set()
    for pod, found in attempts.items():
        run = pod.partition("/")[0]
        latest = told.get(pod)
        if latest is None and _are_attempts(pod, found):
            latest = _latest(found, times(run))
        if latest in found:
            earlier |= found.keys() - {latest}
        elif latest is not None:
            # It has recorded no results: those with results are others.
            number = Execution.parse(latest).attempt
            earlier |= {key for key, one in found.items() if one.attempt != number or key in times(run)}
    return earlier


def _pod(key: str) -> str:
    """Return the run id without what tells the attempts with pods of one name apart."""
    return f"{key.rpartition('/')[0]}/{Execution.parse(key).pod}"


def _are_attempts(pod: str, found: Mapping[str, Execution]) -> bool:
    """Tell whether run ids are those of attempts; names of executions that others choose may only look like it."""
    return len(found) > 1 and (pod in found or all(one.uid for one in found.values()))


def _latest(found: Mapping[str, Execution], times: Mapping[str, float]) -> str:
    uids: dict[str, float] = {}
    for key, one in found.items():
        uids[one.uid] = max(uids.get(one.uid, 0.0), times.get(key, 0.0))
    return max(found, key=lambda key: (uids[found[key].uid], found[key].attempt))

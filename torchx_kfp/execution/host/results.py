"""Results of stages that ran on KFP, read from here: often possible, never worth a long wait.

The nodes of a run name pods, but neither their UIDs nor the attempts in them, so run ids have to be found.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias, TypeVar

from torchx_kfp.common.text import printable, shorten
from torchx_kfp.contract.protocol import Execution
from torchx_kfp.errors import TorchxKfpError
from torchx_kfp.execution.host.cached import Parents
from torchx_kfp.execution.host.connection import within
from torchx_kfp.execution.runs.record import missing, why_not_read
from torchx_kfp.tracking.recorder import SHORT_PATIENCE, Recorder

_Result = TypeVar("_Result")
_NONE: Mapping[str, Sequence[str]] = {}
#: The run id of each execution, by its name, and its results.
_Found: TypeAlias = Mapping[str, tuple[str, Mapping[str, Any]]]
#: The seconds for which a base is waited for, whatever the store does, and for which one is left alone that failed.
DEADLINE, AGAIN = 10.0, 60.0


def find_run_ids(
    recorder: Recorder, names: Iterable[str], earlier: Mapping[str, Sequence[str]] = _NONE
) -> dict[str, str]:
    """Return the run id of each execution, ``<run>/<stage>/<pod>``: the one that has recorded something last.

    That is the last attempt in the pod, or in the last pod of this name, unless it never asked for its run. An
    execution that has recorded nothing keeps its name. Each run is listed once.

    Args:
        recorder: the records under the tracker base.
        names: the executions.
        earlier: earlier executions of the same stages, in order, by these names: of one that has recorded nothing, the
            last of them counts that has. The launcher of a distributed stage follows the replicas of a lost one.
    """
    names = list(names)
    everything = (*names, *(each for name in names for each in earlier.get(name, ())))
    found: dict[str, tuple[tuple[float, int], str]] = {name: ((0.0, 0), name) for name in everything}
    for run in dict.fromkeys(name.partition("/")[0] for name in found):
        for run_id, modified in recorder.written(run).items():
            stage, _, execution = run_id.rpartition("/")
            parsed = Execution.parse(execution)
            if (name := f"{stage}/{parsed.pod}") in found:
                found[name] = max(found[name], ((modified, parsed.attempt), run_id))
    run_ids = {name: run_id for name, (_, run_id) in found.items()}

    def counts(name: str) -> str:
        recorded = (each for each in (name, *reversed(earlier.get(name, ()))) if found[each][0] > (0.0, 0))
        return run_ids[next(recorded, name)]

    return {name: counts(name) for name in names}


class ResultReader:
    """Reads the results of stages from tracker bases. A base that cannot be read is a sentence in ``problems``."""

    def __init__(self, named_bases: Collection[str] = (), *, run_ids_only: bool = False) -> None:
        """Take the tracker bases that the user has named.

        ``run_ids_only`` tells whether to find run ids, and leave their results to the caller.
        """
        self._named_bases, self._run_ids_only = named_bases, run_ids_only
        #: When a base could not be read, and the sentence about it.
        self._failed: dict[str, tuple[float, str]] = {}

    @property
    def problems(self) -> tuple[str, ...]:
        """Sentences about the bases that could not be read, and why."""
        return tuple(sentence for _, sentence in self._failed.values())

    def read(self, base: str, names: Collection[str], earlier: Mapping[str, Sequence[str]] = _NONE) -> _Found:
        """Return the run id of each execution under the base that can be read now, by its name, and its results.

        ``earlier`` are earlier executions: see ``find_run_ids``.
        """
        return self._ask(base, lambda: self._read(base, names, earlier)) or {} if names else {}

    def parents(self, by_base: Mapping[str, Collection[str]]) -> Parents:
        """Return the run ids that stages were given, by their own: see ``Recorder.parents``."""
        found: dict[str, Mapping[str, Collection[str]]] = {}
        for base, run_ids in by_base.items():
            found |= self._ask(base, partial(_parents, base, run_ids)) or {}
        return found

    def _ask(self, base: str, ask: Callable[[], tuple[_Result, str]]) -> _Result | None:
        """Return what can be read under a base now; ``ask`` returns it, and why something in it cannot be read."""
        failed_at = self._failed[base][0] if base in self._failed else -AGAIN
        if time.monotonic() - failed_at < AGAIN:
            return None
        found: _Result | None = None
        if not (why := why_not_read(base, self._named_bases)):
            try:
                found, why = within(DEADLINE, ask)
            except TimeoutError:
                why = f"it has not answered within {DEADLINE:g} s"
            except Exception as error:  # a driver of fsspec, or a library below it, raises its own
                why = str(error) if isinstance(error, TorchxKfpError) else f"{type(error).__name__}: {error}"
        self._failed.pop(base, None)
        if why:
            # Whatever else is there can be read at once.
            self._failed[base] = (
                time.monotonic() if found is None else -AGAIN,
                missing(base, shorten(printable(why), 400).rstrip(".")),
            )
        return found

    def _read(self, base: str, names: Collection[str], earlier: Mapping[str, Sequence[str]]) -> tuple[_Found, str]:
        recorder = Recorder(base, patience=SHORT_PATIENCE)
        run_ids = find_run_ids(recorder, names, earlier)
        if self._run_ids_only:
            return {name: (run_id, {}) for name, run_id in run_ids.items()}, ""
        results = recorder.get_many(run_ids.values())
        found = {name: (run_id, results[run_id]) for name, run_id in run_ids.items() if run_id in results}
        return found, next(map(str, results.problems), "")


def _parents(base: str, run_ids: Collection[str]) -> tuple[Parents, str]:
    return Recorder(base, patience=SHORT_PATIENCE).parents(run_ids), ""

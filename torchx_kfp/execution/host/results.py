"""Results of stages that ran on KFP, read from here: often possible, never worth a long wait.

The nodes of a run name pods, but neither their UIDs nor the attempts in them, so run ids have to be found.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torchx_kfp.common.text import printable, shorten
from torchx_kfp.contract.protocol import Execution
from torchx_kfp.errors import TorchxKfpError
from torchx_kfp.execution.runs.source import missing, why_not_read
from torchx_kfp.tracking.recorder import Recorder

#: The lines of the program around an application if it begins again, or follows the object of an earlier attempt.
_SAID = re.compile(
    rb"torchx-kfp: (?:attempt (\d{1,7}) of \d+: the application ended with exit code "
    rb"|following .* of an earlier attempt, run id (\S+)$)"
)


@dataclass(frozen=True)
class Sought:
    """An execution whose run id is sought.

    Attributes:
        name: ``<run>/<stage>/<pod>``.
        since: when the pod started, if an earlier one may have had its name: what was written before is not its own.
            The clocks of the cluster and of the storage may differ by some seconds: between the last write of a pod
            and the start of the next one, KFP has to notice the failure and somebody to retry the run, and an
            application starts seconds after its pod.
        attempt: the last attempt in the pod, if it is known.
        run_id: the run id, if it is known.
    """

    name: str
    since: float | None = None
    attempt: int | None = None
    run_id: str = ""


def read_log(sought: Sought, lines: Iterable[bytes]) -> Sought:
    """Return what is sought with what the log of the pod says: which attempt at the application was the last one."""
    attempt, run_id = 1, ""
    for line in lines:
        if line.startswith(b"torchx-kfp: ") and (found := _SAID.match(line.rstrip())):
            if found[1]:
                attempt, run_id = int(found[1]), ""
            else:
                run_id = found[2].decode(errors="replace")
    stage = sought.name.rpartition("/")[0]
    # A log may say anything, but a launcher goes on with its own stage.
    is_own = run_id.startswith(f"{stage}/") and "/" not in run_id[len(stage) + 1 :]
    return replace(sought, run_id=run_id) if is_own else replace(sought, attempt=attempt)


def find_run_ids(recorder: Recorder, sought: Iterable[Sought]) -> dict[str, str]:
    """Return the run id of each execution, by its name: that of its last attempt.

    If the log does not say which attempt that is, it is the last one that has recorded results. Without results, the
    run id lacks the UID (``pod__2``). Each run is listed once.
    """
    by_name = {one.name: one for one in sought}
    run_ids = {
        name: one.run_id or (f"{name}__{one.attempt}" if (one.attempt or 1) > 1 else name)
        for name, one in by_name.items()
    }
    found: dict[str, tuple[tuple[float, int], str]] = {}
    for run in dict.fromkeys(name.partition("/")[0] for name in by_name):
        for run_id, modified in recorder.written(run).items():
            stage, _, execution = run_id.rpartition("/")
            parsed = Execution.parse(execution)
            one = by_name.get(f"{stage}/{parsed.pod}")
            # The times of nodes are whole seconds.
            if one is None or modified < (one.since or 0.0) - 1 or one.attempt not in (None, parsed.attempt):
                continue
            found[one.name] = max(found.get(one.name, ((0.0, 0), "")), ((modified, parsed.attempt), run_id))
    return {**run_ids, **{name: run_id for name, (_, run_id) in found.items() if not by_name[name].run_id}}


class ResultReader:
    """Reads the results of stages from tracker bases. A base that cannot be read is a sentence in ``problems``."""

    def __init__(
        self,
        named: Collection[str] = (),
        *,
        run_ids_only: bool = False,
        deadline: float = 10.0,
        again: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Set limits, in seconds.

        Args:
            named: the tracker bases that the user has named.
            run_ids_only: whether to find run ids, and leave their results to the caller.
            deadline: how long a caller waits, whatever the store does.
            again: how long a base that could not be read is left alone.
            clock: the time.
        """
        self._named, self._run_ids_only = named, run_ids_only
        self._deadline, self._again, self._clock = deadline, again, clock
        self._problems: dict[str, str] = {}
        self._failed_at: dict[str, float] = {}

    @property
    def problems(self) -> tuple[str, ...]:
        """Sentences about the bases that could not be read, and why."""
        return tuple(self._problems.values())

    def read(self, base: str, sought: Collection[Sought]) -> Mapping[str, tuple[str, Mapping[str, Any]]]:
        """Return the run id of each execution under the base that can be read now, by its name, and its results."""
        if not sought or self._clock() - self._failed_at.get(base, -self._again) < self._again:
            return {}
        if problem := why_not_read(base, self._named):
            return self._fail(base, problem)
        found: list[Mapping[str, tuple[str, Mapping[str, Any]]]] = []
        problems: list[str] = []

        def read() -> None:
            try:
                recorder = Recorder.open(base)
                run_ids = find_run_ids(recorder, sought)
                results: Mapping[str, Mapping[str, Any]] = {run_id: {} for run_id in run_ids.values()}
                if not self._run_ids_only:
                    results = recorder.get_many(run_ids.values(), corrupt=lambda error: problems.append(str(error)))
                found.append({name: (run_id, results[run_id]) for name, run_id in run_ids.items() if run_id in results})
            except TorchxKfpError as error:
                problems.append(str(error))
            except Exception as error:  # of a driver of fsspec, or a library below it
                problems.append(f"{type(error).__name__}: {error}")

        # A library that hangs cannot be interrupted, only left behind.
        thread = threading.Thread(target=read, name="torchx-kfp-results", daemon=True)
        thread.start()
        thread.join(self._deadline)
        if thread.is_alive():
            return self._fail(base, f"it has not answered within {self._deadline:g} s")
        if problems:
            self._fail(base, shorten(printable(problems[0]), 400).rstrip("."))
        elif found:
            self._problems.pop(base, None)
        return found[0] if found else {}

    def _fail(self, base: str, why: str) -> Mapping[str, tuple[str, Mapping[str, Any]]]:
        self._failed_at[base] = self._clock()
        self._problems[base] = missing(base, why)
        return {}

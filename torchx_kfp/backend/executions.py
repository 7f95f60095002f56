"""Find the run ids of stages on KFP: the nodes of a run name pods, but neither their UIDs nor the attempts in them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from torchx_kfp.contract.protocol import Execution
from torchx_kfp.tracking.stores.store import Store

#: What the program around an application says if it begins again, or follows the object of an earlier attempt.
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


def find_run_ids(store: Store, sought: Iterable[Sought]) -> dict[str, str]:
    """Return the run id of each execution, by its name: that of its last attempt.

    If the log has not told which attempt that is, it is the last one that has recorded results. Without results, the
    run id lacks the UID. Each run is listed once.
    """
    by_name = {one.name: one for one in sought}
    run_ids = {name: one.run_id or _without_uid(one) for name, one in by_name.items()}
    found: dict[str, tuple[tuple[float, int], str]] = {}
    for run in dict.fromkeys(name.partition("/")[0] for name in by_name):
        for file in store.files(run):
            stage, _, execution = file.key.rpartition("/")
            parsed = Execution.parse(execution)
            one = by_name.get(f"{stage}/{parsed.pod}")
            # The times of nodes are whole seconds.
            if one is None or file.modified < (one.since or 0.0) - 1 or one.attempt not in (None, parsed.attempt):
                continue
            found[one.name] = max(found.get(one.name, ((0.0, 0), "")), ((file.modified, parsed.attempt), file.key))
    return {**run_ids, **{name: run_id for name, (_, run_id) in found.items() if not by_name[name].run_id}}


def _without_uid(one: Sought) -> str:
    return f"{one.name}_{one.attempt}" if (one.attempt or 1) > 1 else one.name

"""Folders of runs: of pipelines that run, and of made-up events."""

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import yaml

from torchx_kfp.execution.runs.events import (
    Event,
    RunFinished,
    RunStarted,
    StageFinished,
    StageStarted,
    StageWaiting,
    encode,
)
from torchx_kfp.local import RunResult, StageResult, State, Watch, run

#: Text that a page would run as code, for names, parameters, results and logs.
EVIL = "<script>document.title='broken'</script><img src=x onerror=\"document.title='broken'\">&amp;'\"</pre>"


def record(pipeline: Any, arguments: dict[str, Any], runs: Path, **options: Any) -> tuple[Path, RunResult]:
    """Run a pipeline in the folder of runs."""
    result = run(pipeline, arguments, output_dir=runs, watch=Watch(), cache=False, **options)
    return result.folder, result


def write_events(folder: Path, events: Iterable[Event]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text("{}")
    with (folder / "events.jsonl").open("a") as file:
        for event in events:
            file.write(json.dumps(encode(event)) + "\n")


def many_stages(count: int, path: Path) -> None:
    """Write a compiled pipeline with this many stages in five ranks; each reads two stages of the rank before.

    It does not use kfp's compiler, which would take seconds.
    """
    rank = count // 5
    tasks = {}
    for number in range(count):
        before = [f"stage-{number - rank}", f"stage-{number // rank * rank - rank + (number * 7 + 3) % rank}"]
        tasks[f"stage-{number}"] = {
            "taskInfo": {"name": f"stage-{number}"},
            "componentRef": {"name": "comp"},
            "dependentTasks": before if number >= rank else [],
        }
    spec = {
        "pipelineInfo": {"name": "many"},
        "root": {"dag": {"tasks": tasks}},
        "components": {"comp": {"executorLabel": "exec"}},
        "deploymentSpec": {"executors": {"exec": {"container": {"image": "busybox", "command": ["true"]}}}},
        "schemaVersion": "2.1.0",
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(spec))


def play(
    folder: Path,
    names: Iterable[str],
    *,
    parallel: int = 8,
    seconds: Callable[[int], float] = lambda number: 1 + (number * 37 % 11) / 4,
    result: Callable[[int], dict[str, Any]] = lambda number: {},
    inputs: Callable[[int], dict[str, Any]] = lambda number: {},
    state: Callable[[int], State] = lambda number: State.SUCCEEDED,
    pipeline: str = "many",
    tracker_base: str | None = None,
) -> None:
    """Write the events of a run in which these stages have run, this many at once."""
    now = time.time() - 3600
    events: list[Event] = [RunStarted(pipeline, folder.name, folder, arguments={"seed": 1}, time=now)]
    free = [now] * parallel
    failed = False
    for number, name in enumerate(names):
        lane = min(range(parallel), key=free.__getitem__)
        begin, end = free[lane], free[lane] + seconds(number)
        free[lane] = end
        pod = name.replace("/", "-").replace("[", "-").replace("]", "").replace(",", "-") + "-0"
        task = name.partition("[")[0]
        how = state(number)
        failed |= how is State.FAILED
        events.append(StageWaiting(name, task, time=now))
        events.append(StageStarted(name, pod, 1, task, folder / pod / "log.txt", inputs(number), time=begin))
        ended = StageResult(
            name,
            task,
            how,
            exit_code=3 if how is State.FAILED else 0,
            reason="ended with exit code 3" if how is State.FAILED else "",
            duration=end - begin,
            attempts=1,
            pod_name=pod,
            log_file=folder / pod / "log.txt",
            run_id=f"{folder.name}/{task}/{pod}",
            tracker_base=tracker_base,
            results=result(number),
            inputs=inputs(number),
            started_at=begin,
        )
        events.append(StageFinished(ended, time=end))
    events = events[:1] + sorted(events[1:], key=lambda event: event.time)
    how = State.FAILED if failed else State.SUCCEEDED
    events.append(RunFinished(folder.name, how, max(free) - now, {}, time=max(free)))
    write_events(folder, events)

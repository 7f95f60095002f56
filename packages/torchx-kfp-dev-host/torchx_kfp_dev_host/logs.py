"""The log of a stage's pod: what the stage printed, among the lines of KFP's launcher."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any

from torchx_kfp.execution.pipeline.artifacts import artifacts_in
from torchx_kfp.execution.runs.events import StageFinished, StageStarted
from torchx_kfp.execution.runs.result import StageResult
from torchx_kfp.execution.runs.vocabulary import State


def pod_log(run_id: str, started: StageStarted, ended: float | None, finished: StageFinished | None) -> str:
    """Return the text of the log so far.

    Args:
        run_id: the run's id.
        started: the attempt.
        ended: when it ended, if it has.
        finished: the end of the stage.
    """
    said = ""
    if started.log_file is not None and started.log_file.exists():
        said = started.log_file.read_text(encoding="utf-8", errors="replace")
    parts = [_lines(started.time, _BEGIN), said]
    if ended is not None:
        # The launcher's lines begin in a line of their own only if the stage ends its last one.
        is_last = finished is not None and finished.result.attempts == started.attempt
        parts.append(_end(run_id, started, ended, finished.result if finished and is_last else None))
    return "".join(parts)


def importer_log(start: float, end: StageFinished | None) -> str:
    """Return the log of an importer's pod."""
    failed = end is not None and end.result.state is State.FAILED
    said = _lines(end.time, [f"client.go:1150] {end.result.reason}"], "F") if failed and end else ""
    return _lines(start, _BEGIN[:1]) + said + ("goroutine 1 [running]:\n" if failed else "")


_BEGIN = (
    "main.go:67] Setting log level to: '1'",
    "cache.go:89] Connecting to cache endpoint ml-pipeline.kubeflow.svc.cluster.local:8887",
    "registry.go:68] No task-level plugins enabled, returning no-op dispatcher",
)


def _end(run_id: str, started: StageStarted, when: float, result: StageResult | None) -> str:
    folder = f"/minio/mlpipeline/v2/artifacts/{run_id}/{started.task}"
    upload = (
        "launcher_v2.go:867] Executing uploadOutputArtifacts attempt: 1",
        "launcher_v2.go:800] outputArtifact in uploadOutputArtifacts call: executor-logs",
        f'object_store.go:231] uploadFile(localFilePath="{folder}/executor-logs-0", blobFilePath="executor-logs-0")',
        "launcher_v2.go:206] publish success.",
    )
    if result is not None and result.state is State.CANCELED:
        return ""
    if result is None or result.state is not State.SUCCEEDED:
        code = (result.exit_code if result is not None else None) or 1
        failed = f"launcher_v2.go:449] Component failed to execute successfully: exit status {code}"
        last = f"main.go:59] failed to execute component: exit status {code}"
        return _lines(when, [failed], "E") + _lines(when, upload) + _lines(when, [last], "F")
    output = _executor_output(result.artifacts)
    said = (
        f"launcher_v2.go:1230] ExecutorOutput: {json.dumps(output, indent=2)}"
        if output
        else f"launcher_v2.go:1218] output metadata file does not exist in {folder}/output_metadata.json"
    )
    dag = "client.go:847] Attempting to update DAG state for execution 396"
    return _lines(when, [said, *upload, dag])


def _executor_output(artifacts: Any) -> dict[str, Any]:
    made = {
        name: {
            "artifacts": [
                {
                    "name": item.name,
                    "type": {"schemaTitle": item.type.title, "schemaVersion": item.type.version or "0.0.1"},
                    "uri": item.uri,
                    **({"metadata": dict(item.metadata)} if item.metadata else {}),
                }
                for item in artifacts_in(value)
            ]
        }
        for name, value in artifacts.items()
    }
    return {"artifacts": made} if made else {}


def _lines(when: float, lines: Iterable[str], level: str = "I") -> str:
    """Return lines as klog writes them."""
    shown = time.strftime("%m%d %H:%M:%S", time.gmtime(when)) + f".{int(when % 1 * 1e6):06}"
    return "".join(f"{level}{shown}      16 {line}\n" for line in lines)

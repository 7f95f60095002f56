"""Artifacts of runs that are made up: what KFP's UI renders, and what would do harm."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.execution.report.runs import report, write_events
from torchx_kfp.local import RunFinished, RunStarted, StageFinished, StageResult, State

MATRIX = {
    "annotationSpecs": [{"displayName": "cat"}, {"displayName": "dog"}],
    "rows": [{"row": [90, 10]}, {"row": [2, 8.5]}],
}
ROC = [
    {"confidenceThreshold": 1 - share / 10, "falsePositiveRate": share / 10, "recall": min(1.0, share / 5)}
    for share in range(11)
]
MARKDOWN = """\
# Evaluation

**93 %** were right, see [the docs](https://example.com/docs).

| class | recall |
|---|---:|
| cat | 0.9 |
"""
HTML = "<h2>Errors</h2><p style='color: rgb(1, 2, 3)'>by class</p>"

#: Each of these would set the page's title, make a request, or appear outside its place.
HARM = """<script>parent.document.title = top.document.title = 'broken'</script>
<img src="https://example.com/i" onerror="document.title='broken'"><svg onload="parent.document.title='broken'"></svg>
</script></iframe>"></iframe></textarea></pre></div><script>document.title='broken'</script>
<meta http-equiv="refresh" content="0; url=https://example.com/refresh"><base href="https://example.com/">
<link rel="stylesheet" href="https://example.com/style"><iframe src="https://example.com/frame"></iframe>
<form action="https://example.com/form" target="_top"><button id="send">send</button></form>
<a id="out" href="https://example.com/out" target="_top">out</a><a id="within" href="https://example.com/within">in</a>
<object data="https://example.com/object"></object><video src="https://example.com/video" autoplay></video>
<style>@import url(https://example.com/import); body { background: url(https://example.com/background) }</style>
"""
HARMFUL_MARKDOWN = (
    HARM
    + "[a](javascript:document.title='broken') ![b](https://example.com/picture) "
    + "[c](data:text/html,<script>1</script>) <javascript:document.title='broken'>\n\n"
    + '```x" onclick="document.title=1\n</code></pre><script>document.title=1</script>\n```\n'
)


def artifact(kind: str, uri: object = "", metadata: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return an artifact as an event records it."""
    return {"name": "it", "type": f"system.{kind}", "version": "", "uri": str(uri), "metadata": dict(metadata or {})}


def finished(folder: Path, artifacts: Mapping[str, object], log: str = "") -> Path:
    """Return the page of a run whose only stage has these artifacts; with a log, the stage has failed."""
    log_file = folder / "make_1" / "log.txt"
    log_file.parent.mkdir(parents=True, exist_ok=True)
    log_file.write_text(log)
    state, now = (State.FAILED if log else State.SUCCEEDED), time.time()
    stage = StageResult("make", "make", state, reason="failed", attempts=1, log_file=log_file)
    start, end = RunStarted("made", folder.name, folder, time=now), RunFinished(folder.name, state, 1.0, {}, time=now)
    write_events(folder, [start, StageFinished(stage, time=now), end])
    lines = (folder / "events.jsonl").read_text().splitlines()
    lines[1] = json.dumps({**json.loads(lines[1]), "artifacts": artifacts})
    (folder / "events.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return report(folder)

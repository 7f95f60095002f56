"""Answers of a hostile host: recorded ones, changed at random. Commands show them, or end with a message."""

from __future__ import annotations

import base64
import contextlib
import copy
import gzip
import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.execution.host.answers_of_kfp import RUNS, last, manifest, polls
from tests.execution.host.scripted import Reply, Request, Scripted, scripted
from tests.execution.pipeline.test_damaged import damage
from tests.programs import OF_USER
from torchx_kfp.entrypoints.cli import cli
from torchx_kfp.entrypoints.cli.commands.logs import _Printer
from torchx_kfp.errors import TorchxKfpError
from torchx_kfp.host import attach

#: How many answers are changed; by hand, more can be.
COUNT = int(os.environ.get("TORCHX_KFP_MUTATIONS") or 24)
VALUES: list[Any] = [
    *(None, True, 0, -1, 7, 1e308, -1e308, 10**25, 0.5, "", "x", "\ud800", "\0", "../x", "a" * 5000, "é\n\x1b[31m"),
    *([], {}, [[]], [None], {"": {}}, {"a": {"b": [1]}}, ["x", {}], "[" * 500, "{", "0001-01-01T00:00:00Z"),
    *(
        "9999-12-31T23:59:59Z",
        "99999-01-01T00:00:00Z",
        "2026-01-01T00:00:00." + "9" * 400 + "Z",
        "2026-01-01T00:00:00+99:99",
    ),
    *("FAILED", "RUNNING", "CANCELING", "Omitted", "Pod", "(0)", "9" * 400, "1e400"),
]
COMMANDS = (("watch",), ("runs",), ("watch", "--json"), ("logs",), ("results",), ("report", "-o", "-"))


def change(answer: Any, dice: random.Random) -> None:
    """Change some values in an answer, except those inside of the pipeline: `test_damaged` changes it."""
    damage(answer, dice, VALUES, ("pipeline_spec", "pipelineSpec", "pipeline_manifest", "spec"))


def answers(seed: int, folder: Path) -> tuple[Any, Any]:
    """Return v2beta1's and v1beta1's answers about a run, changed."""
    dice = random.Random(seed)
    name = dice.choice(RUNS)
    run = dice.choice(polls(name)[-3:])
    base = json.dumps(run["runtime_config"]["parameters"]["tracker_base"])
    run, old = (json.loads(json.dumps(each).replace(base, json.dumps(str(folder)))) for each in (run, manifest(name)))
    workflow = json.loads(old["pipeline_runtime"]["workflow_manifest"])
    what = dice.choice(("run", "workflow", "workflow", "both", "outer"))
    if what in ("run", "both"):
        run_id = run["run_id"]
        change(run, dice)
        if isinstance(run, dict) and dice.random() < 0.9:
            run["run_id"] = run_id
    if what in ("workflow", "both"):
        change(workflow, dice)
    status = workflow.get("status")
    if dice.random() < 0.2 and isinstance(status, dict):
        packed = gzip.compress(json.dumps(status.pop("nodes", None)).encode(), mtime=0)
        packed = packed if dice.random() < 0.5 else packed[: dice.randrange(len(packed))]
        status["compressedNodes"] = base64.b64encode(packed).decode()
    old["pipeline_runtime"]["workflow_manifest"] = json.dumps(workflow)
    if what == "outer":
        change(old, dice)
    return run, old


@pytest.fixture
def hostile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Scripted]:
    for name in os.environ:
        if name.startswith(OF_USER):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for seconds in ("SHORTEST", "LONGEST", "PATIENCE"):
        monkeypatch.setattr(f"torchx_kfp.execution.host.run.{seconds}", 0.0)
    with scripted(lambda request: Reply({})) as server:
        monkeypatch.setenv("TORCHX_KFP_HOST", server.url)
        monkeypatch.setenv("TORCHX_KFP_TRACKER_BASE", str(tmp_path))
        yield server


def serve(server: Scripted, run: Any, old: Any) -> None:
    """Serve these answers; after some time, the run is gone, so that those end who wait for its end."""
    polled = 0

    def script(request: Request) -> Reply:
        nonlocal polled
        if "/log" in request.path:
            return Reply("line\n")
        if "v1beta1" in request.path:
            return Reply(old)
        if "/runs/" not in request.path:
            return Reply({"runs": [run], "next_page_token": run.get("display_name")})
        polled += 1
        return Reply(run) if polled < 4 else Reply({}, 404)

    server.script = script


@pytest.mark.timeout(300 + COUNT)
@pytest.mark.parametrize("batch", range(4))
def test_answers_that_were_changed_cause_no_traceback(hostile: Scripted, tmp_path: Path, batch: int) -> None:
    for seed in range(batch, COUNT, 4):
        run, old = answers(seed, tmp_path)
        run_id = run["run_id"] if isinstance(run.get("run_id"), str) else ""
        for command, *words in (COMMANDS[seed // 4 % 6], COMMANDS[(seed // 4 + 1) % 6]):
            serve(hostile, run, old)
            named = [] if command == "runs" else [run_id or "latest"]
            done = CliRunner().invoke(cli, [command, *named, *words, "--host", hostile.url])
            if done.exception is not None and not isinstance(done.exception, SystemExit):
                raise AssertionError(f"{command}, seed {seed}") from done.exception
            assert done.exit_code in (0, 1, 2)


@pytest.mark.timeout(300 + COUNT)
@pytest.mark.parametrize("batch", range(2))
def test_a_pod_spec_that_was_changed_is_read_or_refused(hostile: Scripted, tmp_path: Path, batch: int) -> None:
    """For a replay. A stage's command is one list of words, whatever is in them, and nothing is started."""
    hostile_words = [
        "$(touch canary)",
        "'; touch canary; '",
        '"',
        "`touch canary`",
        "\n touch canary",
        "-",
        "{{$}}",
        *VALUES,
    ]
    for seed in range(batch, COUNT, 2):
        dice = random.Random(seed)
        run, old = last("retried"), copy.deepcopy(manifest("retried"))
        workflow = json.loads(old["pipeline_runtime"]["workflow_manifest"])
        for node in workflow["status"]["nodes"].values():
            for parameter in (node.get("outputs") or {}).get("parameters") or []:
                if parameter["name"] == "pod-spec-patch" and parameter.get("value"):
                    patch = json.loads(parameter["value"])
                    words = patch["containers"][0]["command"] + (patch["containers"][0].get("args") or [])
                    words[-dice.randrange(1, 6)] = dice.choice(hostile_words)
                    patch["containers"][0] |= {"command": words, "args": []}
                    if dice.random() < 0.5:
                        change(patch, dice)
                    parameter["value"] = json.dumps(patch)
        old["pipeline_runtime"]["workflow_manifest"] = json.dumps(workflow)
        serve(hostile, run, old)
        with contextlib.suppress(TorchxKfpError):
            attach(run["run_id"], host=hostile.url).invocation("second")
        assert not list(tmp_path.rglob("canary"))


def test_a_log_of_one_long_line_takes_linear_time(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"a" * (32 << 20))
    begun = time.process_time()
    printer = _Printer(prefixed=True)
    printer.show("train", path)
    # It was 9 s while each piece of 64 KiB was joined to those before it.
    assert time.process_time() - begun < 2
    assert not printer.is_empty

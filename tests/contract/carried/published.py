"""Stages that publish results and artifacts, as processes."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2

from tests.authoring.apps import compile_stage, load, make_app
from tests.authoring.kfp_engines import Container, container_of
from torchx_kfp.tracking import current_run

#: The execution id of stages of this process only: processes that a stage leaves running are found by it, even if the
#: tests run twice.
POD = str(uuid.uuid4())
RUN_ID = f"run/train/{POD}"


class Stage:
    """A stage that is named ``train``: its tracker base, what it declares, and its process."""

    def __init__(self, folder: Path, **declared: Any) -> None:
        self.folder = folder
        self.base = str(folder / "results")
        #: The place in which the engine keeps artifacts: a backend's object store, or a local folder.
        self.root = "s3://bucket/root"
        #: The options ``results``, ``artifacts`` and ``may_fail``.
        self.declared = {"results": {}, **declared}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.environ = {**os.environ, "PATH": path, "KFP_RUN_ID": "run", "KFP_POD_NAME": POD}

    def container(self, *application: str) -> Container:
        """Return the stage's container with this application."""
        compiled = compile_stage(make_app(entrypoint=application[0], args=list(application[1:])), **self.declared)
        declared = load(compiled)[0]["components"]["comp-train"]["outputDefinitions"]
        self._outputs = [output for output in declared.get("parameters", ()) if output != "run_id"]
        outputs, artifacts = (
            {output: str(self.folder / "out" / output) for output in declared.get(kind, {})}
            for kind in ("parameters", "artifacts")
        )
        inputs = {"tracker_base": self.base}
        container = container_of(compiled, "train", inputs=inputs, outputs=outputs, artifacts=artifacts)
        return dataclasses.replace(container, root=self.root)

    def run(self, *application: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run the stage."""
        given = {"env": self.environ, "capture_output": True, "text": True, "timeout": 60, "check": False, **options}
        return subprocess.run(self.container(*application).argv(), **given)

    def start(self, *application: str, **options: Any) -> subprocess.Popen[str]:
        """Start the stage, and wait until its application says that it is ready."""
        given = {"env": self.environ, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
        process = subprocess.Popen(self.container(*application).argv(), **given)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    def record(self, text: str) -> None:
        """Write a file of results, as another tracker may."""
        path = Path(self.base, RUN_ID)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def register(self, name: str, path: str, **metadata: Any) -> None:
        """Register an artifact, as the application may."""
        current_run({"TORCHX_TRACKER_BASE": self.base, "TORCHX_JOB_ID": RUN_ID}).add_artifact(name, path, **metadata)

    def outputs(self) -> dict[str, str]:
        """Return the output parameters, but for the execution id."""
        return {output: (self.folder / "out" / output).read_text() for output in self._outputs}

    def report(self) -> dict[str, Any]:
        """Return the report, which a launcher must be able to read as KFP's message."""
        text = (self.folder / "out" / "executor_output.json").read_text()
        json_format.Parse(text, pipeline_spec_pb2.ExecutorOutput(), ignore_unknown_fields=False)
        document = json.loads(text)
        assert set(document) == {"artifacts"}
        return {output: artifacts["artifacts"][0] for output, artifacts in document["artifacts"].items()}

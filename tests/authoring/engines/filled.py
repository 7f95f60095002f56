"""The input of a distributed stage's launcher, and the object that it creates on a cluster."""

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from torchx.specs import AppDef

from tests.authoring.apps import compile_stage
from tests.authoring.kfp_engines import container_of, containers
from torchx_kfp.authoring.engines import Engine
from torchx_kfp.contract.carried import cluster_stage, replica_roles

#: A program that prints its arguments, in place of python3.
_PRINTS = "#!/bin/sh\nprintf '%s\\0' \"$@\"\n"
#: The launcher's own variables, as in a loop on a cluster.
ENVIRON = {
    "KFP_ARGO_NODE": "run-abcde(0).root(0).for-loop-2(0).iteration-iterations(0:7)(0).train(0).executor(1)",
    "KFP_RUN_ID": "2a6b5e4c",
    "KFP_SERVICE_ACCOUNT": "pipeline-runner",
}


@dataclass(frozen=True)
class Launched:
    """The arguments of the launcher: its specification, KFP's executor input, and words."""

    spec: dict[str, Any]
    executor_input: dict[str, Any]
    words: list[str]

    def stage(self, config: Any = None, environ: dict[str, str] | None = None) -> cluster_stage.ClusterStage:
        """Return the stage as the launcher has it on a cluster, before its first request.

        Args:
            config: what is set on the task: ``dsl.TaskConfig``.
            environ: further variables of the launcher.
        """
        executor_input = {**self.executor_input, "inputs": {"parameterValues": {"task_config": config}}}
        with (
            mock.patch.dict("os.environ", {**ENVIRON, **(environ or {})}),
            mock.patch.object(cluster_stage, "Cluster") as cluster,
        ):
            cluster.return_value.account = "pipeline-runner"
            counts = [replica_roles.count(role, self.words) for role in self.spec["roles"]]
            return cluster_stage.ClusterStage(self.spec, self.words, counts, executor_input)

    def manifest(self, config: Any = None, environ: dict[str, str] | None = None) -> dict[str, Any]:
        """Return the object that the launcher creates."""
        stage = self.stage(config, environ)
        with mock.patch.dict("os.environ", {**ENVIRON, **(environ or {})}):
            made: dict[str, Any] = stage.manifest([])
            return made


def launched(app: AppDef, engine: Engine, *, tracked: bool = False) -> Launched:
    """Return what reaches the launcher of this stage through Argo, the kubelet, KFP and the stage's script."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "python3").write_text(_PRINTS)
        Path(folder, "python3").chmod(0o755)
        compiled = compile_stage(app, tracked=tracked, engine=engine)
        (component,) = containers(compiled)
        done = container_of(
            compiled,
            component,
            inputs={"tracker_base": "/tmp/results"},
            outputs={"run_id": f"{folder}/out/run_id"},
            environ={"PATH": f"{folder}:{os.environ['PATH']}"},
        ).run()
    assert (done.returncode, done.stderr) == (0, b"")
    _, program, spec, executor_input, *words = done.stdout.decode().split("\0")[:-1]
    assert program.startswith("import sys")
    return Launched(json.loads(spec), json.loads(executor_input), words)

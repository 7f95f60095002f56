"""The variables of a stage's process, and the settings of Kubernetes that the runner knows."""

import os
import subprocess
import sys

from kfp.kubernetes import kubernetes_executor_config_pb2
from kfp.pipeline_spec import pipeline_spec_pb2

from torchx_kfp.contract import protocol
from torchx_kfp.execution.local.executors.process import RUN_MARK, stage_environment
from torchx_kfp.execution.local.kubernetes import KNOWN_OF_PIPELINES
from torchx_kfp.execution.pipeline.pod_settings import POD_SETTINGS


def test_python_is_the_running_interpreter_without_such_names_in_its_folder(tmp_path, monkeypatch):
    folder = tmp_path / "it's mine"
    folder.mkdir()
    link = folder / "python3.99"
    link.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    link.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(link))
    path = stage_environment(tmp_path, "run")["PATH"].split(os.pathsep)[0]
    assert path == str(tmp_path / "bin")
    for name in ("python", "python3"):
        command = [os.path.join(path, name), "-c", "import sys, yaml; print(sys.argv[1:])", "a b", ""]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout == "['a b', '']\n"


def test_a_run_inside_of_a_stage_keeps_the_outer_mark(tmp_path):
    assert stage_environment(tmp_path, "inner", {RUN_MARK: "outer"})[RUN_MARK] == "outer:inner"


def test_trackers_of_a_stage_around_a_run_are_its_own(tmp_path):
    around = protocol.encode_context(protocol.StageContext("/x", "a/b/c", trackers={"mlflow": "http://x"}))
    found = stage_environment(tmp_path, "run", {**around, "TORCHX_TRACKER_OTHER_CONFIG": "kept"})
    assert {name for name in found if name.startswith("TORCHX_TRACKER")} == {"TORCHX_TRACKER_OTHER_CONFIG"}


def test_every_setting_of_the_installed_kfp_kubernetes_is_known():
    names = {field.json_name for field in kubernetes_executor_config_pb2.KubernetesExecutorConfig.DESCRIPTOR.fields}
    assert names <= POD_SETTINGS.keys()
    names = {field.json_name for field in pipeline_spec_pb2.PipelineConfig.DESCRIPTOR.fields}
    assert names <= KNOWN_OF_PIPELINES

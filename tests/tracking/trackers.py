"""Trackers for tests, on the module path of real processes, with entry points like those of an installed package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchx.tracker.api import TrackerBase, build_trackers

#: A tracker that writes each call into the file in its configuration.
RECORDER = """
import json
from torchx.tracker.api import TrackerBase

class Recorder(TrackerBase):
    def __init__(self, config):
        self.config = config
        self.write("create", config)
    def write(self, *entry):
        with open(self.config, "a") as file:
            file.write(json.dumps(entry) + "\\n")
    def add_artifact(self, run_id, name, path, metadata=None):
        self.write("artifact", run_id, name, path, metadata)
    def add_metadata(self, run_id, **kwargs):
        self.write("metadata", run_id, kwargs)
    def add_source(self, run_id, source_id, artifact_name=None):
        self.write("source", run_id, source_id, artifact_name)
    def artifacts(self, run_id): return {}
    def metadata(self, run_id): return {}
    def sources(self, run_id, artifact_name=None): return []
    def lineage(self, run_id): raise NotImplementedError
    def run_ids(self, **kwargs): return []

def create(config):
    return Recorder(config)
"""


def install(folder: Path, name: str, text: str = RECORDER) -> None:
    """Install a package with this module, whose function ``create`` is a tracker with the module's name."""
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.py").write_text(text)
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[torchx.tracker]\n{name} = {name}:create\n")


def backend(config: object, name: str = "torchx_kfp") -> TrackerBase:
    """Return a tracker as TorchX makes it for an application, by the name of its entry point."""
    [made] = build_trackers({name: str(config)})
    return made


def run_application(
    code: str, stage: Mapping[str, str], packages: Path, *, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run an application in a separate process, in the environment of this stage."""
    environ = {**os.environ, **stage, "PYTHONPATH": str(packages)}
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, env=environ, cwd=packages, capture_output=True, text=True, check=False, timeout=120)
    assert not check or done.returncode == 0, done.stderr
    return done


def calls(file: Path) -> list[Any]:
    """Return the calls of a recorder."""
    return [json.loads(line) for line in file.read_text().splitlines()]

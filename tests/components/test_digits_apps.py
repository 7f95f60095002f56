"""What the digits applications need, and where they store files. ``tests/cases`` runs their pipeline."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from components.digits import component as apps
from tests.components.test_components import REPOSITORY
from tests.modules import needs
from torchx_kfp.tracking import FsspecResultTracker

pytestmark = [pytest.mark.examples, needs("sklearn", "the digits applications need the extra `examples`")]


def test_deploy_needs_no_torchx_kfp(tmp_path: Path) -> None:
    FsspecResultTracker(str(tmp_path))["run/select/1"] = {"accuracy": 0.97, "model": "file:///model"}
    given = {
        "TORCHX_TRACKER_BASE": str(tmp_path),
        "TORCHX_JOB_ID": "run/deploy/1",
        "TORCHX_PARENT_RUN_ID": "run/select/1",
        "TORCHX_PARENT_RUN_IDS": '{"select": "run/select/1"}',
    }
    # None in sys.modules makes imports of the name fail.
    code = "import runpy, sys; sys.modules['torchx_kfp'] = None; runpy.run_module({!r}, run_name='__main__')"
    ends = []
    for app in (apps.deploy(0.9), apps.select()):
        _, module, *words = app.roles[0].args
        command = [sys.executable, "-c", code.format(module), *words]
        environ = {**os.environ, **given}
        ends.append(subprocess.run(command, cwd=REPOSITORY, env=environ, capture_output=True, text=True, check=False))
    assert (ends[0].returncode, ends[0].stderr) == (0, "")
    assert FsspecResultTracker(tmp_path)["run/deploy/1"]["deployed"] is True
    assert "No module named 'torchx_kfp" in ends[1].stderr


def test_runs_by_path_from_any_folder(tmp_path: Path) -> None:
    script = REPOSITORY / "components" / "digits" / "train.py"
    done = subprocess.run([sys.executable, script, "--help"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--gamma" in done.stdout


def test_importing_the_package_loads_neither_torchx_nor_kfp() -> None:
    """`python -m components.digits.train` imports it in the application's image."""
    code = "import sys, components.digits; print([name for name in ('torchx', 'kfp') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"

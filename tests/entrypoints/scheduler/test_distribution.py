"""The distribution ``torchx-kfp-scheduler``: what it adds to TorchX, and what it leaves as it is."""

from __future__ import annotations

import dataclasses
import email
import json
import sys
import zipfile
from pathlib import Path

import pytest
from torchx import specs
from torchx.schedulers import DEFAULT_SCHEDULER_MODULES

import torchx_kfp
from tests.entrypoints.scheduler.program import TorchX
from tests.programs import Done

pytestmark = pytest.mark.newest

_SCHEDULERS = """
import json
from torchx.schedulers import get_default_scheduler_name, get_scheduler_factories
print(json.dumps([get_default_scheduler_name(), list(get_scheduler_factories())]))
"""
#: Imports the entry point and constructs the scheduler.
_MADE = """
import sys
import torchx.cli.main
before = set(sys.modules)
from torchx.schedulers import get_scheduler_factories
scheduler = get_scheduler_factories()["kfp"]("torchx", client="x")
scheduler.run_opts()
print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before}))
"""


def python(torchx: TorchX, code: str, **environ: str) -> Done:
    """Run a program of Python in the same environment."""
    return dataclasses.replace(torchx, program=sys.executable)("-c", code, anew=True, **environ)


def test_the_wheel_has_nothing_but_metadata(wheel: Path) -> None:
    info = f"torchx_kfp_scheduler-{torchx_kfp.__version__}.dist-info"
    with zipfile.ZipFile(wheel) as archive:
        assert {name.rpartition("/")[0] for name in archive.namelist()} <= {info, f"{info}/licenses"}
        metadata = email.message_from_bytes(archive.read(f"{info}/METADATA"))
    assert metadata["Name"] == "torchx-kfp-scheduler"
    assert metadata["License-Expression"] == "Apache-2.0"
    # torchx itself is not among them: pip would install it over the nightly.
    assert metadata.get_all("Requires-Dist") == ["torchx-kfp>=0.1"]


def test_all_schedulers_of_torchx_stay_and_the_default_does(torchx: TorchX) -> None:
    said = python(torchx, _SCHEDULERS)
    assert (said.returncode, said.stderr) == (0, "")
    default, names = json.loads(said.stdout)
    own = list(DEFAULT_SCHEDULER_MODULES)
    assert default == own[0] == "local_docker"
    assert names[: len(own)] == own
    assert names[-1] == "kfp"
    # TorchX 0.7.0 has all that are registered. Its nightly has lost the others.
    if not hasattr(specs, "Workspace"):
        assert names == [*own, "kfp"]


def test_constructing_it_costs_little_and_prints_nothing(torchx: TorchX) -> None:
    """``torchx runopts`` and ``torchx configure`` construct every scheduler."""
    said = python(torchx, _MADE)
    assert (said.returncode, said.stderr) == (0, "")
    loaded = set(said.stdout.split())
    assert "torchx_kfp" in loaded
    assert not loaded & {"kfp", "kubernetes", "google", "fsspec", "rich", "jinja2", "requests_toolbelt"}


def test_another_default_comes_from_a_torchxconfig(torchx: TorchX) -> None:
    (torchx.folder / ".torchxconfig").write_text("[cli:run]\nscheduler = kfp\n")
    said = torchx("run", "--dryrun", "utils.echo", "--msg", "hi")
    assert said.returncode == 0, said.stderr
    assert "pipelineInfo" in said.stdout

"""The wheel, built for real; what importing the package loads; and the targets of the Makefile."""

from __future__ import annotations

import email
import email.message
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from importlib.metadata import EntryPoint
from pathlib import Path

import fsspec
import pytest

import torchx_kfp

pytestmark = pytest.mark.once

REPOSITORY = Path(__file__).resolve().parents[1]


def run(*command: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env={**os.environ, **environ}, cwd=REPOSITORY, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the repository: building leaves files in its source."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    # Hidden files are environments and caches; the others are not left out, because the wheel has to.
    ignore = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "demo-results", "local_outputs")
    shutil.copytree(REPOSITORY, source, ignore=ignore)
    built = run(
        sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", folder, source
    )
    assert built.returncode == 0, built.stderr
    [wheel] = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="session")
def metadata(wheel: Path) -> email.message.Message:
    with zipfile.ZipFile(wheel) as archive:
        return email.message_from_bytes(archive.read(f"torchx_kfp-{torchx_kfp.__version__}.dist-info/METADATA"))


def test_the_wheel_holds_the_package_alone_and_whole(wheel: Path) -> None:
    assert wheel.name == f"torchx_kfp-{torchx_kfp.__version__}-py3-none-any.whl"
    info = f"torchx_kfp-{torchx_kfp.__version__}.dist-info"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        license_text = archive.read(f"{info}/licenses/LICENSE").decode()
    package = {
        str(path.relative_to(REPOSITORY))
        for path in (REPOSITORY / "torchx_kfp").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert "torchx_kfp/py.typed" in package
    assert {name for name in names if not name.startswith(f"{info}/")} == package
    assert "Apache License" in license_text
    assert "Version 2.0, January 2004" in license_text


def test_the_metadata_says_what_the_package_needs(metadata: email.message.Message) -> None:
    assert metadata["Name"] == "torchx-kfp"
    assert metadata["Version"] == torchx_kfp.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.10"
    assert {"s3", "gcs", "mlflow", "report", "examples", "dev"} <= set(metadata.get_all("Provides-Extra", []))
    requirements = metadata.get_all("Requires-Dist", [])
    needed = [requirement for requirement in requirements if "extra ==" not in requirement]
    # Without lower bounds pip picks torchx 0.3.0; and a bound for each of the others is what test-lowest tests.
    assert all(">=" in requirement for requirement in needed)
    assert {requirement.split(">=")[0].split("<")[0] for requirement in needed} >= {
        "kfp",
        "kfp-kubernetes",
        "torchx",
        "fsspec",
        "pyyaml",
    }
    extras = {"s3": "s3fs", "gcs": "gcsfs", "mlflow": "mlflow-skinny", "report": "jinja2", "examples": "scikit-learn"}
    for extra, package in extras.items():
        of_extra = [requirement for requirement in requirements if requirement.endswith(f'extra == "{extra}"')]
        assert [requirement for requirement in of_extra if requirement.startswith(package)], extra


def test_the_wheel_has_the_command(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        declared = archive.read(f"torchx_kfp-{torchx_kfp.__version__}.dist-info/entry_points.txt").decode()
    console, trackers = (
        "[console_scripts] torchx-kfp = torchx_kfp.__main__:main",
        "[torchx.tracker] mlflow = torchx_kfp.tracking.backends.mlflow:create "
        "torchx_kfp = torchx_kfp.tracking.backends.stage:create",
    )
    assert " ".join(declared.split()) == f"{console} {trackers}"
    assert callable(EntryPoint("torchx-kfp", "torchx_kfp.__main__:main", "console_scripts").load())
    # Installed beside the interpreter that runs this.
    shown = run(Path(sysconfig.get_path("scripts"), "torchx-kfp"), "--help")
    assert shown.returncode == 0, shown.stderr
    assert "compile" in shown.stdout


def test_tracking_works_where_only_fsspec_is(wheel: Path, tmp_path: Path) -> None:
    """``pip install --no-deps torchx-kfp`` in an image that has fsspec, and neither kfp nor torchx."""
    venv = tmp_path / "venv"
    made = run(sys.executable, "-m", "venv", "--without-pip", venv)
    assert made.returncode == 0, made.stderr
    python = venv / "bin" / "python"
    installed = run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel)
    assert installed.returncode == 0, installed.stderr

    # This environment's fsspec, without its neighbours.
    only_fsspec = tmp_path / "only-fsspec"
    only_fsspec.mkdir()
    (only_fsspec / "fsspec").symlink_to(Path(fsspec.__file__).parent)
    [packages] = venv.glob("lib/python*/site-packages")
    (packages / "fsspec.pth").write_text(str(only_fsspec))

    program = """
import importlib.util, sys
assert not any(importlib.util.find_spec(name) for name in ("kfp", "torchx", "yaml", "click", "rich"))
from torchx_kfp.tracking import current_run
run = current_run()
run.put(accuracy=0.5)
print(run.id, run.results(), sys.modules["torchx_kfp"].__file__)
"""
    environ = {"TORCHX_TRACKER_BASE": str(tmp_path / "results"), "TORCHX_JOB_ID": "run/stage/1"}
    # Isolated: neither the working directory nor PYTHONPATH are looked at.
    done = run(python, "-I", "-W", "error", "-c", program, **environ)
    assert done.stderr == ""
    assert done.stdout == f"run/stage/1 {{'accuracy': 0.5}} {packages / 'torchx_kfp' / '__init__.py'}\n"


@pytest.mark.parametrize("module", ["torchx_kfp", "torchx_kfp.errors", "torchx_kfp.protocol"])
def test_importing_loads_neither_kfp_nor_torchx(module: str) -> None:
    program = f"import sys, {module}; print(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    done = run(sys.executable, "-c", program)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert "torchx_kfp" in loaded
    assert loaded.isdisjoint({"kfp", "torchx", "fsspec", "yaml", "click", "rich", "celpy"})


def test_make_lists_its_targets() -> None:
    shown = run("make", "--no-print-directory")
    assert shown.returncode == 0, shown.stderr
    listed = {line.split()[1] for line in shown.stdout.splitlines() if line.startswith("  make ")}
    [phony] = [line for line in (REPOSITORY / "Makefile").read_text().splitlines() if line.startswith(".PHONY:")]
    assert listed == set(phony.removeprefix(".PHONY:").split())
    assert {"help", "demo", "test", "ci"} <= listed


def test_an_interpreter_that_cannot_serve_is_named(tmp_path: Path) -> None:
    refused = run("make", "test", f"VENV={tmp_path / 'venv'}", "PYTHON=/bin/false")
    assert refused.returncode != 0
    assert "PYTHON=/bin/false is no Python of 3.10 or later" in refused.stderr
    assert not (tmp_path / "venv").exists()


def test_a_machine_without_python_is_told_what_to_do(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("bash", "dirname"):
        (tools / tool).symlink_to(shutil.which(tool) or tool)
    environ = {key: value for key, value in os.environ.items() if key != "PYTHON"} | {"PATH": str(tools)}
    refused = subprocess.run(
        [tools / "bash", REPOSITORY / ".ci" / "venv", tmp_path / "venv"],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 1
    assert "No Python of 3.10 or later on the PATH" in refused.stderr
    assert "make PYTHON=/path/to/python3.11" in refused.stderr

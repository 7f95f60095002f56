"""The wheel, which is really built, and the modules that importing the package loads."""

from __future__ import annotations

import email
import email.message
import os
import re
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
    # Hidden files are environments and caches. Other files are copied, because the wheel itself must leave them out.
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
    requirements = metadata.get_all("Requires-Dist", [])
    # These are all packages that applications need.
    needed = [requirement for requirement in requirements if "extra ==" not in requirement]
    assert [requirement.partition(">=")[0] for requirement in needed] == ["fsspec"]
    # Without lower bounds, pip picks torchx 0.3.0; test-lowest tests the bounds of all others.
    assert all(">=" in requirement for requirement in requirements)


def test_the_documents_name_this_version_and_repository(metadata: email.message.Message) -> None:
    urls = dict(url.split(", ") for url in metadata.get_all("Project-URL", []))
    assert all(url.startswith(urls["Homepage"]) for url in urls.values())
    documents = [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md")]
    text = "\n".join(document.read_text(encoding="utf-8") for document in documents)
    assert set(re.findall(r"https://github\.com/[\w-]+/torchx-kfp\b", text)) == {urls["Homepage"]}
    assert set(re.findall(r"torchx_kfp-([\d.]+)-py3|torchx-kfp(?:/archive/refs/tags/|@)v([\d.]*\d)", text)) == {
        (torchx_kfp.__version__, ""),
        ("", torchx_kfp.__version__),
    }
    changelog = (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
    [newest, *_] = re.findall(r"^## (\d.*)$", changelog, re.MULTILINE)
    assert re.fullmatch(r"[\d.]+ - \d{4}-\d{2}-\d{2}", newest)
    assert newest.split()[0] == torchx_kfp.__version__


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
    # The program is installed next to the interpreter that runs this.
    shown = run(Path(sysconfig.get_path("scripts"), "torchx-kfp"), "--help")
    assert shown.returncode == 0, shown.stderr
    assert "compile" in shown.stdout


@pytest.fixture(scope="session")
def image(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment like in an application's image: the wheel without an extra, and fsspec."""
    folder = tmp_path_factory.mktemp("image")
    venv = folder / "venv"
    made = run(sys.executable, "-m", "venv", "--without-pip", venv)
    assert made.returncode == 0, made.stderr
    # Copy this environment's fsspec, but not the packages next to it.
    [packages] = venv.glob("lib/python*/site-packages")
    of_fsspec = Path(fsspec.__file__).parent
    for package in (of_fsspec, *of_fsspec.parent.glob("fsspec-*.dist-info")):
        (packages / package.name).symlink_to(package)
    # Its dependencies are checked, and must not need to be fetched.
    installed = run(sys.executable, "-m", "pip", "--python", venv / "bin" / "python", "install", "--no-index", wheel)
    assert installed.returncode == 0, installed.stderr
    return venv


def in_image(image: Path, program: str, **environ: str) -> subprocess.CompletedProcess[str]:
    # Python is isolated: it ignores the working directory and PYTHONPATH.
    return run(image / "bin" / "python", "-I", "-W", "error", "-c", program, **environ)


def test_an_application_needs_no_extra(image: Path, tmp_path: Path) -> None:
    program = """
import importlib.util, sys
assert not any(importlib.util.find_spec(name) for name in ("kfp", "torchx", "yaml", "click", "rich"))
import torchx_kfp.errors, torchx_kfp.contract.protocol, torchx_kfp.contract.carried.storage
from torchx_kfp.tracking import current_run
run = current_run()
run.put(accuracy=0.5)
print(run.id, run.results(), sys.modules["torchx_kfp"].__file__)
"""
    environ = {"TORCHX_TRACKER_BASE": str(tmp_path / "results"), "TORCHX_JOB_ID": "run/stage/1"}
    done = in_image(image, program, **environ)
    assert done.stderr == ""
    [packages] = image.glob("lib/python*/site-packages")
    assert done.stdout == f"run/stage/1 {{'accuracy': 0.5}} {packages / 'torchx_kfp' / '__init__.py'}\n"


NEEDED = (
    'needs the extra "pipelines" (not installed: click, jinja2, kfp and 7 more). '
    'Install it with: pip install "torchx-kfp[pipelines]"\n'
)


@pytest.mark.parametrize(
    "words", [(), ("--help",), ("run", "pipeline.py"), ("show", "--no-such-option")], ids=lambda words: " ".join(words)
)
@pytest.mark.parametrize("program", ["torchx-kfp", "python -m torchx_kfp"])
def test_a_command_without_its_extra_says_what_to_type(image: Path, program: str, words: tuple[str, ...]) -> None:
    executable, *options = program.split()
    done = run(image / "bin" / executable, *options, *words)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"Error: The command torchx-kfp {NEEDED}")


@pytest.mark.parametrize(
    ("statement", "needs"),
    [
        *[
            (f"import torchx_kfp; torchx_kfp.{name}", name)
            for name in sorted({*torchx_kfp.__all__} - {"__version__", "current_run"})
        ],
        ("from torchx_kfp import task_from_app", "task_from_app"),
        ("import torchx_kfp; torchx_kfp.local", "local"),
        ("import torchx_kfp.local", "local"),
        ("from torchx_kfp.local import run", "local"),
    ],
)
def test_an_import_without_its_extra_says_what_to_type(image: Path, statement: str, needs: str) -> None:
    program = f"try:\n    {statement}\nexcept ImportError as error:\n    print(type(error).__name__, error)"
    done = in_image(image, program)
    assert done.stderr == ""
    assert done.stdout == f"MissingExtraError torchx_kfp.{needs} {NEEDED}"


@pytest.mark.parametrize(
    ("program", "what", "extra", "missing"),
    [
        ("import torchx_kfp.hpo.ax", "torchx_kfp.hpo.ax", "ax", "ax, torchx"),
        (
            "from torchx_kfp.tracking import FsspecResultTracker as T; T('/none').to_frame()",
            *("A DataFrame", "pandas", "pandas"),
        ),
    ],
)
def test_what_needs_another_extra_says_what_to_type(
    image: Path, program: str, what: str, extra: str, missing: str
) -> None:
    done = in_image(image, program)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f'torchx_kfp.errors.MissingExtraError: {what} needs the extra "{extra}" (not installed: {missing}). '
        f'Install it with: pip install "torchx-kfp[{extra}]"'
    )

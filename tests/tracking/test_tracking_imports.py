"""The packages that an application's image needs: the standard library, fsspec, and a few modules of this package."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import fsspec
import pytest

import torchx_kfp

pytestmark = pytest.mark.lowest

#: The modules that may be loaded besides the standard library.
ALLOWED = {
    "fsspec",
    "torchx_kfp",
    "torchx_kfp.contract.carried",
    "torchx_kfp.contract.carried.storage",
    "torchx_kfp.common",
    "torchx_kfp.errors",
    "torchx_kfp.common.extras",
    "torchx_kfp.common.git",
    "torchx_kfp.common.safe_files",
    "torchx_kfp.contract",
    "torchx_kfp.contract.protocol",
    "torchx_kfp.common.text",
    "torchx_kfp.tracking",
}


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages with only fsspec and this package, like an installation without an extra."""
    folder = tmp_path_factory.mktemp("site-packages")
    for module in (fsspec, torchx_kfp):
        package = Path(str(module.__file__)).parent
        (folder / package.name).symlink_to(package)
    return folder


def run(image: Path, code: str, environ: dict[str, str] | None = None) -> str:
    # -S leaves out the site-packages of this environment.
    program = f"import sys\nsys.path.insert(0, {str(image)!r})\n{code}"
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], env=environ or {}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_imports_nothing_else(image: Path) -> None:
    code = """
before = set(sys.modules)
import torchx_kfp.tracking
import json
print(json.dumps(sorted(set(sys.modules) - before)))
"""
    loaded = {name for name in json.loads(run(image, code)) if name.split(".")[0] not in sys.stdlib_module_names}
    assert "torchx_kfp.tracking.run" in loaded, "the test sees what is loaded"
    packages = ("fsspec.", "torchx_kfp.tracking.")
    assert not {name for name in loaded if name not in ALLOWED and not name.startswith(packages)}


def test_a_directory_does_without_fsspec(image: Path, tmp_path: Path) -> None:
    """Its import takes longer than everything else that a small application does."""
    code = """
from torchx_kfp.tracking import current_run
current_run().put(loss=0.5)
print("fsspec" in sys.modules, current_run().results())
"""
    environ = {"TORCHX_TRACKER_BASE": str(tmp_path), "TORCHX_JOB_ID": "p1/train/e1"}
    assert run(image, code, environ) == "False {'loss': 0.5}\n"


@pytest.mark.parametrize(
    "statement", ["import torchx_kfp.tracking", "from torchx_kfp import current_run; current_run()"]
)
def test_the_installed_environment_loads_nothing_else_either(statement: str, tmp_path: Path) -> None:
    """kfp and torchx are not loaded, even if they are installed."""
    code = (
        f"import sys\n{statement}"
        """
print(*sorted({name.split(".")[0] for name in sys.modules} & set(sys.argv[1:])))
"""
    )
    heavy = ["kfp", "torchx", "yaml", "click", "s3fs", "aiohttp", "numpy"]
    environ = {"TORCHX_TRACKER_BASE": str(tmp_path), "TORCHX_JOB_ID": "p1/train/e1"}
    words = [sys.executable, "-c", code, *heavy]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""

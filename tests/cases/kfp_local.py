"""How pipelines of the corpus end under kfp.local: ``kfp_local.json``, which ``make goldens`` rewrites.

    python -m tests.cases.kfp_local [CASE...]

prints it. It is a separate program because kfp.local's settings affect its whole process, and it leaves files in the
current directory.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from kfp import local

from tests.cases import KFP_FAMILIES, VERSION, Case, load_cases

FILE = Path(__file__).with_suffix(".json")
ROOT = Path(__file__).parents[2]


def interpreter(folder: Path) -> str:
    """Return a path of this interpreter, through a link in the folder, that KFP's runner can use.

    The runner writes the path into a shell program without quotes.
    """
    (folder / "environment").symlink_to(sys.prefix)
    return str(folder / "environment" / Path(sys.executable).relative_to(sys.prefix))


def is_comparable(case: Case) -> bool:
    """Tell whether this version's kfp.local runs the pipeline like a backend."""
    return not case.local and not case.refused and case.local_since <= VERSION


def run_case(case: Case) -> dict[str, Any]:
    """Return how the pipeline ends: its state, its outputs, and the texts of its artifacts' files."""
    try:
        task = case.pipeline(**case.arguments)
    except Exception as error:  # kfp.local does not have an exception class for a failed task
        print(f"{case.name}: {type(error).__name__}: {error}", file=sys.stderr)
        return {"state": "failed"}
    artifacts = {name: value for name, value in task.outputs.items() if _is_artifact(value)}
    return {
        "state": "succeeded",
        "outputs": {name: value for name, value in task.outputs.items() if name not in artifacts},
        "artifacts": {name: content_of(value) for name, value in artifacts.items()},
    }


def _is_artifact(value: Any) -> bool:
    return hasattr(value, "uri") or (isinstance(value, list) and bool(value) and hasattr(value[0], "uri"))


def content_of(value: Any) -> Any:
    """Return the parts of an artifact to compare, both for kfp.local's artifacts and for this project's."""
    if isinstance(value, list):
        return [content_of(item) for item in value]
    path = Path(value.path)
    return {
        "type": value.type.title if hasattr(value, "type") else value.schema_title,
        "metadata": dict(value.metadata),
        "text": path.read_text() if path.is_file() else None,
    }


def recorded() -> dict[str, Any]:
    """Return how the pipelines ended under the usual version's kfp.local, by their names."""
    return dict(json.loads(FILE.read_text(encoding="utf-8")))


def write() -> None:
    """Run all pipelines, and write how they end under the installed version."""
    with tempfile.TemporaryDirectory() as folder:
        command = [interpreter(Path(folder)), "-W", "ignore", "-m", "tests.cases.kfp_local"]
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environ, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    lines = (f"{json.dumps(name)}: {json.dumps(end)}" for name, end in json.loads(done.stdout.splitlines()[-1]).items())
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def main() -> None:
    names = sys.argv[1:]
    local.init(local.SubprocessRunner(use_venv=False), pipeline_root="kfp", raise_on_error=True)
    cases = [case for family in KFP_FAMILIES for case in load_cases(family).values()]
    ends = {case.name: run_case(case) for case in cases if is_comparable(case) and (not names or case.name in names)}
    print(json.dumps(ends))


if __name__ == "__main__":
    main()

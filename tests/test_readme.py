"""The README's example and commands, run as a reader would."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """The files of the small example."""
    for block in blocks("python"):
        name = re.match(r"# (\w+\.py)\n", block)
        if name:
            (tmp_path / name[1]).write_text(block)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["choose.py", "pipeline.py", "train.py"]
    return tmp_path


def call(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    words = shlex.split(command)
    assert words[0] == "torchx-kfp"
    return subprocess.run(
        [str(Path(sys.executable).parent / words[0]), *words[1:]],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_small_example(example: Path) -> None:
    commands = next(block for block in blocks("console") if "torchx-kfp run" in block).splitlines()
    outputs = {}
    for command in commands:
        done = call(example, command)
        assert done.returncode == 0, done.stderr
        outputs[command] = done.stdout
    run = json.loads(next(output for command, output in outputs.items() if "--json" in command))
    results = {stage["name"]: stage["results"] for stage in run["stages"]}
    best = min(("train[0]", "train[1]"), key=lambda name: results[name]["loss"])
    assert results["choose"]["loss"] == results[best]["loss"]
    assert results["choose"]["best"] == next(stage["run_id"] for stage in run["stages"] if stage["name"] == best)
    assert (example / "pipeline.yaml").exists()


def environment(folder: Path) -> dict[str, str]:
    return {
        **os.environ,
        "TORCHX_TRACKER_BASE": str(folder),
        "TORCHX_JOB_ID": "run/this/1",
        "TORCHX_PARENT_RUN_ID": "run/prepare/1",
        "TORCHX_PARENT_RUN_IDS": '{"prepare": "run/prepare/1", "trials": ["run/train/1"]}',
    }


def record(folder: Path) -> None:
    for stage in ("prepare", "train"):
        (folder / "run" / stage).mkdir(parents=True)
        (folder / "run" / stage / "1").write_text('{"accuracy": 0.5}')


def test_reading_and_writing_with_torchx_kfp_and_with_plain_torchx(tmp_path: Path) -> None:
    record(tmp_path)
    ours, torchx = (block for block in blocks("python") if "run.put(accuracy" in block or "os.environ" in block)
    for block in (ours, torchx):
        subprocess.run([sys.executable, "-W", "ignore", "-c", block], env=environment(tmp_path), check=True, timeout=60)
        recorded = json.loads((tmp_path / "run" / "this" / "1").read_text())
        assert recorded["accuracy"] == (0.93 if block is ours else 0.51)
    assert "l2norm/mean" in ours


def test_reading_and_writing_from_a_shell_script(tmp_path: Path) -> None:
    record(tmp_path)
    (script,) = blocks("sh")
    done = subprocess.run(["sh", "-euc", script], env=environment(tmp_path), capture_output=True, text=True, check=True)
    assert done.stdout == '{"accuracy": 0.5}'
    assert json.loads((tmp_path / "run" / "this" / "1").read_text()) == {"message": "hello"}


def test_every_file_that_it_names_exists() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README.read_text(encoding="utf-8"))
    assert links
    assert [link for link in links if not (README.parent / link).exists()] == []

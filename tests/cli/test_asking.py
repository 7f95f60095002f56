"""The README's commands on what runs have recorded, in the README's words."""

import re
import shlex
from pathlib import Path

from tests.cli.conftest import Call
from torchx_kfp.tracking import FsspecResultTracker
from torchx_kfp.tracking.statements.starts import record_start

README = Path(__file__).parent.parent.parent / "README.md"


def test_the_commands_of_the_readme(inside: Call, project: Path) -> None:
    tracker = FsspecResultTracker(project / "results")
    for run in ("example-1", "example-2"):
        tracker[f"{run}/train/train-0-0"] = {"x": 2.9, "loss": 0.01}
        tracker[f"{run}/choose/choose-0"] = {"best": f"{run}/train/train-0-0", "loss": 0.01}
        record_start(tracker.store, f"{run}/choose/choose-0", {"trials": [f"{run}/train/train-0-0"]})
    blocks = re.findall(r"^```console\n(.*?)^```", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    commands = next(block for block in blocks if "lineage" in block).splitlines()
    assert len(commands) == 9
    for command in commands:
        words = shlex.split(command.replace("RUN", "example-1").replace("OTHER", "example-2"), comments=True)
        done = inside(*words[1:])
        assert done.returncode == 0, done.stderr
        assert done.stdout or words[1] == "gc"

"""``torchx-kfp lineage``: very large lineages. Its trees are in ``tests/transcripts``."""

import json
from pathlib import Path

import pytest

from tests.programs import Program
from tests.tracking.stages import stage
from tests.transcripts.given import declare, lineage
from torchx_kfp.tracking import FsspecResultTracker
from torchx_kfp.tracking.entries import add_entry


@pytest.fixture(autouse=True)
def base(project: Path) -> Path:
    lineage(project / "base")
    return project / "base"


def test_fan_ins_of_fan_ins_and_long_chains(call: Program, project: Path) -> None:
    store = FsspecResultTracker(project / "base").store
    for level in range(1, 300):
        declare(store, f"deep/s{level}/1", {"before": [f"deep/s{level - 1}/{number}" for number in range(3)]})
        add_entry(store, f"deep/s{level}/1", {"sources": [{"run_id": f"deep/s{level - 1}/1"}]})
    shown = call("show", "--lineage", "--tracker-base", "base", "deep/s299/1").stdout.splitlines()
    assert len(shown) < 120
    assert sum("... and more; --json shows all" in line for line in shown) == 1
    narrow = call.terminal(80, "show", "--lineage", "--tracker-base", "base", "deep/s299/1", NO_COLOR="1").read()
    assert max(map(len, narrow.splitlines())) <= 80


def test_json_has_what_is_stored_of_an_artifact(call: Program, base: Path) -> None:
    stage(base, "run-3/train/1").add_artifact("model", __file__, store=True)
    stage(base, "run-3/judge/1", {"train": "run-3/train/1"})
    [link] = json.loads(call("show", "--lineage", "--tracker-base", "base", "run-3/judge", "--json").stdout)["links"]
    [artifact] = link["artifacts"]
    assert artifact["stored"]["size"] == Path(__file__).stat().st_size

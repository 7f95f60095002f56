"""``torchx-kfp artifacts``: the artifacts of a run, listed and copied."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.entrypoints.cli.conftest import Call
from tests.facts import says
from torchx_kfp.contract import protocol
from torchx_kfp.tracking import current_run
from torchx_kfp.tracking.recorder import Recorder
from torchx_kfp.tracking.statements import add_artifact


@pytest.fixture
def base(project: Path) -> str:
    made = project / "made"
    (made / "checkpoint").mkdir(parents=True)
    (made / "checkpoint" / "a.bin").write_bytes(bytes(1500))
    (made / "model.pt").write_bytes(b"model")
    base = str(project / "base")
    for execution in ("1", "2"):
        run = current_run(protocol.encode(protocol.StageContext(base, f"a-1/train/{execution}")))
        run.add_artifact("checkpoint", made / "checkpoint", store=True)
    run = current_run(protocol.encode(protocol.StageContext(base, "a-1/evaluate/e")))
    run.add_artifact("best/model", made / "model.pt", store=True, epochs=3)
    run.add_artifact("plot", "s3://plots/1")
    return base


def test_they_are_listed(call: Call, base: str) -> None:
    done = call("artifacts", "base", "a-1")
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("a-1/")]
    assert [words[:2] for words in lines] == [
        ["a-1/evaluate/e", "best/model"],
        ["a-1/evaluate/e", "plot"],
        ["a-1/train/1", "checkpoint"],
        ["a-1/train/2", "checkpoint"],
    ]
    assert lines[0][2:4] == ["5", "B"], lines
    assert lines[1][2:] == ["s3://plots/1"]
    assert "1.5 kB in 1 file " in done.stdout

    found = json.loads(call("artifacts", "base", "a-1/evaluate", "--format", "json").stdout)
    assert [(it["name"], it["metadata"]) for it in found] == [("best/model", {"epochs": 3}), ("plot", {})]
    assert (found[0]["stored"]["size"], found[1]["stored"]) == (5, None)
    assert Path(found[0]["path"]).read_bytes() == b"model"

    table = call("show", "base", "a-1/evaluate").stdout
    assert "5 B  " in table
    assert (
        json.loads(call("show", "base", "a-1/evaluate", "--format", "json").stdout)["artifacts"]["best/model"]["stored"]
        == found[0]["stored"]
    )


def test_one_is_copied(call: Call, base: str, project: Path) -> None:
    done = call("artifacts", "get", "base", "a-1/evaluate/best/model")
    assert (done.returncode, done.stdout) == (0, "./model.pt\n"), done.stderr
    assert (project / "model.pt").read_bytes() == b"model"
    assert call("artifacts", "get", "base", "a-1/train/2/checkpoint", "new/folder").returncode == 0
    assert (project / "new/folder/checkpoint/a.bin").stat().st_size == 1500

    (project / "model.pt").write_text("mine")
    refused = call("artifacts", "get", base, "a-1/evaluate/best/model", ".")
    assert refused.returncode == 2
    assert re.search(says("model.pt", "--overwrite"), refused.stderr)
    assert (project / "model.pt").read_text() == "mine"
    assert call("artifacts", "get", base, "a-1/evaluate/best/model", ".", "--overwrite").returncode == 0
    assert (project / "model.pt").read_bytes() == b"model"
    assert not list(project.glob(".*.part"))

    # A key that an application has chosen need not have the parts of a run id.
    for key, words in {"b": "b/model", "c/fit": "c/fit/model", "d/fit/1/2": "d/fit/1/2/model"}.items():
        add_artifact(Recorder.open(base).store, key, "model", project / "made/model.pt", None, stored=True)
        assert call("artifacts", "get", base, words, f"of-{key[0]}").stdout == f"of-{key[0]}/model.pt\n"


@pytest.mark.parametrize(
    ("words", "code", "facts"),
    [
        (["a-1/evaluate/best/modle"], 2, ["'evaluate/best/modle'", "Did you mean", "'evaluate/best/model'"]),
        (["a-1/train/checkpoint"], 2, ["2 artifacts", "train/1/checkpoint", "train/2/checkpoint"]),
        (["a-1/evaluate/plot"], 1, ["'plot'", "s3://plots/1", "store=True"]),
        (["a-2/evaluate/plot"], 2, ["a-2"]),
        (["a-1"], 2, ["STAGE/NAME"]),
        (["a-1/train/1/checkpoint", "pipelines.py"], 2, ["pipelines.py"]),
        ([], 2, ["RUN/STAGE/NAME"]),
    ],
)
def test_what_cannot_be_copied_is_named(call: Call, base: str, words: list[str], code: int, facts: list[str]) -> None:
    done = call("artifacts", "get", base, *words)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert re.search(says(*facts), done.stderr), done.stderr


def test_a_changed_one_is_an_error(call: Call, base: str, project: Path) -> None:
    [place] = Path(base).rglob("model.pt")
    place.write_text("other")
    done = call("artifacts", "get", base, "a-1/evaluate/best/model", "copies")
    assert done.returncode == 1
    assert re.search(says(place, "SHA-256"), done.stderr)
    assert list((project / "copies").iterdir()) == []

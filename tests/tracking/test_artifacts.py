"""Artifacts of a run: registered, read again, and equal for TorchX's tracker, on every kind of store."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.facts import says
from tests.tracking.stages import application, environ, stage
from tests.tracking.stages import backend as torchx_tracker
from torchx_kfp.errors import RefusedError
from torchx_kfp.tracking import Artifact, FsspecResultTracker


def test_what_is_registered_is_read(base: str) -> None:
    run = stage(base)
    assert run.artifacts() == {}
    run.add_artifact("model", "s3://models/1", framework="sklearn", classes=[0, 1])
    run.add_artifact("l2norm/mean", "gs://plots/ü.png")
    run.add_artifact("confusion", "", rows=[[1]])
    assert run.artifacts() == {
        "model": Artifact("model", "s3://models/1", {"framework": "sklearn", "classes": [0, 1]}),
        "l2norm/mean": Artifact("l2norm/mean", "gs://plots/ü.png"),
        "confusion": Artifact("confusion", "", {"rows": [[1]]}),
    }
    assert stage(base, "p1/train/e2").artifacts() == {}, "another run has its own"
    assert stage(base, "p1/use/e1", {"train": run.id}).parent.artifacts() == run.artifacts()
    run.put(accuracy=0.9)
    assert (run.results(), FsspecResultTracker(base).keys()) == ({"accuracy": 0.9}, [run.id])


def test_a_run_id_of_a_cluster_fits(tmp_path: Path) -> None:
    """It has 36 characters for the run, 63 for the stage, and a pod's name; a file's name may have 255 bytes."""
    run = stage(tmp_path, f"{'r' * 36}/{'s' * 63}/{'p' * 63}")
    run.add_artifact("model", "s3://models/1")
    assert run.artifacts()["model"].path == "s3://models/1"
    backend = torchx_tracker(tmp_path)
    backend.add_source(run.id, "kubernetes://default/app", "model")
    assert list(backend.run_ids()) == [run.id]
    (source,) = backend.sources(run.id)
    assert (source.source_run_id, source.artifact_name) == ("kubernetes://default/app", "model")


def test_a_local_path_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = stage(tmp_path / "results")
    run.add_artifact("relative", "models/1")
    run.add_artifact("path", Path("models") / "2")
    assert {name: artifact.path for name, artifact in run.artifacts().items()} == {
        "relative": f"{tmp_path}/models/1",
        "path": f"{tmp_path}/models/2",
    }
    monkeypatch.setenv("HOME", str(tmp_path))
    torchx_tracker("~/results").add_artifact(run.id, "torchx", "models/3")
    torchx_tracker("~/results").add_artifact(run.id, "home", "~/models/4")
    assert run.artifacts()["torchx"].path == f"{tmp_path}/models/3"
    assert run.artifacts()["home"].path == f"{tmp_path}/models/4"


@pytest.mark.parametrize(
    ("name", "path", "metadata", "text"),
    [
        ("", "x", {}, says("'model'", "''", "artifact")),
        (5, "x", {}, says("'model'", "5")),
        ("model", "x", {"a": {1}}, says("'model'", "metadata", "artifact", "Use")),
    ],
)
def test_an_artifact_that_is_refused_is_not_registered(
    tmp_path: Path, name: Any, path: Any, metadata: dict[str, Any], text: str
) -> None:
    run = stage(tmp_path)
    with pytest.raises(RefusedError, match=text):
        run.add_artifact(name, path, **metadata)
    assert run.artifacts() == {}


# Paths of this machine


def test_a_path_where_nothing_is_is_said_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not an error: a folder may be created later, or by another process of the stage."""
    monkeypatch.chdir(tmp_path)
    run = stage(tmp_path / "results")
    (tmp_path / "there").mkdir()
    for path in (str(tmp_path / "there"), "there", "s3://models/1", "", __file__, f"file://{__file__}"):
        run.add_artifact("model", path)
    assert caplog.messages == []
    run.add_artifact("model", "modle.pt")
    run.add_artifact("model", f"file://{tmp_path}/none")
    run.add_artifact("model", f"{__file__}/none")
    nothing = "where nothing exists yet"
    assert caplog.messages == [
        f"The artifact 'model' is registered at {place}. Write it before the stage ends."
        for place in (
            f"{tmp_path}/modle.pt, {nothing}",
            f"{tmp_path}/none, {nothing}",
            f"{__file__}/none, {nothing}",
        )
    ]
    assert run.artifacts()["model"].path == f"{__file__}/none"


def test_it_is_said_in_an_application_that_configures_no_logging(tmp_path: Path) -> None:
    code = "from torchx_kfp.tracking import current_run; current_run().add_artifact('model', '/no/model.pt')"
    done = application(code, environ(tmp_path), check=True)
    assert "'model' is registered at /no/model.pt, where nothing exists yet" in done.stderr


@pytest.mark.parametrize("kind", ["FIFO", "device", "socket"])
@pytest.mark.parametrize("form", ["path", "url", "link"])
def test_what_is_no_file_is_refused(tmp_path: Path, kind: str, form: str) -> None:
    path = tmp_path / "it"
    with socket.socket(socket.AF_UNIX) as bound:
        if kind == "FIFO":
            os.mkfifo(path)
        elif kind == "socket":
            bound.bind(str(path))
        else:
            path = Path("/dev/zero")
        (tmp_path / "link").symlink_to(path)
        named = {"path": str(path), "url": f"file://{path}", "link": str(tmp_path / "link")}[form]
        run = stage(tmp_path / "results")
        with pytest.raises(RefusedError, match=says("'model'", kind)):
            run.add_artifact("model", named)
    assert run.artifacts() == {}

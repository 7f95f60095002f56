"""The backend of ``torchx.tracker``: every method, on every kind of store, and compared to TorchX's own backend."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import fsspec
import pytest
from torchx.runtime.tracking import FsspecResultTracker as TorchxTracker
from torchx.tracker import api
from torchx.tracker.backend.fsspec import FsspecTracker

from tests.facts import says
from tests.tracking.stages import application, environ, stage
from tests.tracking.stages import backend as backend_of
from torchx_kfp.errors import TrackerError
from torchx_kfp.tracking import Artifact, FsspecResultTracker

RUN = "local_cwd://session/app-1"
OTHER = "kubernetes://default/app-2"


RESULTS: dict[str, Any] = {
    "accuracy": 0.93,
    "epochs": 3,
    "done": True,
    "note": 'größer 🔑 "quoted" \\ \n',
    "l2norm/mean": 1.2,
    "inf": math.inf,
}


def pairs(sources: Iterable[api.TrackerSource]) -> list[tuple[str, str | None]]:
    return [(source.source_run_id, source.artifact_name) for source in sources]


@pytest.mark.versions
@pytest.mark.parametrize("key", ["run/train/0a1b", "größe", "a%20b", "1", "two words", "a:b", "a#b", RUN])
def test_both_trackers_read_what_the_other_wrote(base: str, key: str) -> None:
    ours, theirs = FsspecResultTracker(base), TorchxTracker(base)
    ours[key] = RESULTS
    assert theirs[key] == RESULTS
    ours.put(key, x=1)
    assert theirs.get(key) == {"x": 1}
    theirs[key] = RESULTS
    assert ours[key] == RESULTS


@pytest.mark.versions
def test_both_trackers_write_the_same_bytes_with_the_same_interface(tmp_path: Path) -> None:
    FsspecResultTracker(tmp_path / "ours")["a/b"] = RESULTS
    TorchxTracker(str(tmp_path / "theirs"))["a/b"] = RESULTS
    assert (tmp_path / "ours/a/b").read_bytes() == (tmp_path / "theirs/a/b").read_bytes()
    theirs = {name for name in dir(TorchxTracker) if not name.startswith("_")}
    assert theirs <= set(dir(FsspecResultTracker))


@pytest.mark.versions
def test_every_method_is_there(tmp_path: Path) -> None:
    """Also one that TorchX adds one day."""
    theirs = {name for name in vars(api.TrackerBase) if not name.startswith("_")}
    assert theirs <= {name for name in vars(type(backend_of(tmp_path))) if not name.startswith("_")}


def test_a_filter_that_is_unknown(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="parent_run"):
        backend_of(tmp_path).run_ids(parent_run="x")


@pytest.mark.versions
class TestAgainstTorchX:
    """Both backends do the same; the parameter tells which backend it is."""

    @pytest.fixture(params=["torchx_kfp", "torchx"])
    def backend(self, request: pytest.FixtureRequest, tmp_path: Path) -> api.TrackerBase:
        if request.param == "torchx_kfp":
            return backend_of(tmp_path)
        return FsspecTracker(fsspec.filesystem("file"), str(tmp_path))

    def test_metadata(self, backend: api.TrackerBase) -> None:
        backend.add_metadata(RUN, k1="v1", k2=2)
        backend.add_metadata(RUN, k3=[1.5, None, {"a": True}])
        backend.add_metadata(OTHER, k1="other")
        assert backend.metadata(RUN) == {"k1": "v1", "k2": 2, "k3": [1.5, None, {"a": True}]}

    def test_artifacts(self, backend: api.TrackerBase) -> None:
        backend.add_artifact(RUN, "model", "/models/1", {"epochs": 3})
        backend.add_artifact(RUN, "plot", "s3://plots/1")
        assert backend.artifacts(RUN) == {
            "model": api.TrackerArtifact("model", "/models/1", {"epochs": 3}),
            "plot": api.TrackerArtifact("plot", "s3://plots/1", None),
        }

    def test_sources(self, backend: api.TrackerBase) -> None:
        backend.add_source(RUN, OTHER)
        backend.add_source(RUN, "experiment-5", artifact_name="model")
        assert sorted(pairs(backend.sources(RUN))) == [("experiment-5", "model"), (OTHER, None)]
        assert pairs(backend.sources(RUN, artifact_name="model")) == [("experiment-5", "model")]
        assert pairs(backend.sources(RUN, artifact_name="plot")) == []
        assert pairs(backend.sources(OTHER)) == []

    def test_run_ids(self, backend: api.TrackerBase) -> None:
        backend.add_metadata(RUN, a=1)
        backend.add_artifact(OTHER, "model", "x")
        backend.add_source("third", RUN)
        assert sorted(backend.run_ids()) == sorted([RUN, OTHER, "third"])
        assert list(backend.run_ids(parent_run_id=RUN)) == ["third"]
        assert list(backend.run_ids(parent_run_id="third")) == []


def test_an_artifact_of_a_source_is_said_beside_another(base: str) -> None:
    backend = backend_of(base)
    for _ in range(2):
        for name in (None, "model", "plot", ""):
            backend.add_source(RUN, OTHER, name)
    assert pairs(backend.sources(RUN)) == [(OTHER, None), (OTHER, "model"), (OTHER, "plot")], "each once"


def test_both_sides_are_one_store(base: str) -> None:
    run = stage(base, "p1/train/1", {"data": "p1/prepare/1"})
    backend = backend_of(base)
    run.add_metadata(a=1)
    backend.add_metadata(run.id, b=2)
    backend.add_artifact(run.id, "model", "s3://models/1", {"x": 1})
    assert run.metadata() == backend.metadata(run.id) == {"a": 1, "b": 2}
    assert run.artifacts()["model"] == Artifact("model", "s3://models/1", {"x": 1})
    assert pairs(backend.sources(run.id)) == [("p1/prepare/1", None)]
    run.put(accuracy=0.5)
    assert FsspecResultTracker(base).keys() == ["p1/train/1"]


IN_A_STAGE = """
import json
from torchx.tracker import AppRun
run = AppRun.run_from_env()
run.add_metadata(epochs=3)
run.add_artifact("model", "s3://models/1", {"size": 7})
[backend] = run.backends
sources = [(s.parent.job_id(), s.artifact_name) for s in run.sources()]
print(json.dumps([type(backend).__module__, run.job_id(), sources, backend.lineage(run.id).ancestors]))
"""


@pytest.mark.parametrize("store", ["local", pytest.param("s3", marks=pytest.mark.s3)])
@pytest.mark.versions
def test_an_application_of_torchx_tracker_is_a_stage_as_it_is(
    store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    base = tmp_path / "base" if store == "local" else request.getfixturevalue("s3_base")
    trials = ("p1/train/2", "p1/train/1")
    variables = environ(base, "p1/use/1", {"prepare": "p1/prepare/1", "trials": trials, "empty": ()})
    for _ in range(2):  # replicas
        done = application(IN_A_STAGE, variables, check=True)
        ancestors = ["p1/prepare/1", *trials]
        sources = [[run_id, None] for run_id in ancestors]
        assert json.loads(done.stdout) == ["torchx_kfp.tracking.backends.stage", "p1/use/1", sources, ancestors]
    backend = backend_of(base)
    assert backend.metadata("p1/use/1") == {"epochs": 3}
    assert backend.artifacts("p1/use/1")["model"].path == "s3://models/1"
    # Its files are not among the results, and do not affect them.
    tracker = FsspecResultTracker(base)
    assert tracker.keys() == []
    tracker["top"] = {"a": 1}
    assert tracker.keys() == ["top"]


@pytest.mark.parametrize("config", ["", None])
def test_no_tracker_base(config: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TORCHX_TRACKER_BASE", raising=False)
    with pytest.raises(TrackerError, match=says("''", "tracker base", "directory", "Use")):
        api.build_trackers({"torchx_kfp": config})
    monkeypatch.setenv("TORCHX_TRACKER_BASE", str(tmp_path))
    assert repr(api.build_trackers({"torchx_kfp": config})) == f"[StageTracker({str(tmp_path)!r})]"


@pytest.mark.versions
def test_other_trackers_get_what_app_run_records(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "config").write_text(f"protocol=file\nroot_path={tmp_path}/other\n")
    code = """
from torchx.tracker import AppRun
from torchx_kfp.tracking import current_run
AppRun.run_from_env().add_metadata(epochs=3)
current_run().put(accuracy=0.5)
print([type(backend).__name__ for backend in AppRun.run_from_env().backends])
"""
    trackers = {"torchx.tracker.backend.fsspec:create": str(tmp_path / "config")}
    done = application(code, environ(tmp_path / "base", "run/train/1", trackers=trackers), check=True)
    assert done.stdout == "['StageTracker', 'FsspecTracker']\n"
    other = FsspecTracker(fsspec.filesystem("file"), f"{tmp_path}/other")
    assert other.metadata("run/train/1") == {"epochs": 3}

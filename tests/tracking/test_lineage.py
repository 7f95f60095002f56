"""Metadata, sources and lineage: recorded by many processes at once and read again, on every kind of store."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.facts import says
from tests.tracking.stages import backend as torchx_tracker
from tests.tracking.stages import environ, stage
from torchx_kfp.errors import RefusedError
from torchx_kfp.tracking import Artifact, FsspecResultTracker, Link, Source


class TestMetadata:
    def test_is_added_and_read(self, base: str) -> None:
        run = stage(base)
        assert run.metadata() == {}
        run.add_metadata(epochs=3, config={"lr": [0.1, 0.2]}, note=None)
        run.add_metadata({"git/commit": "abc"}, epochs=4)
        assert run.metadata() == {"epochs": 4, "config": {"lr": [0.1, 0.2]}, "note": None, "git/commit": "abc"}
        assert stage(base, "p1/train/e2").metadata() == {}
        assert FsspecResultTracker(base).keys() == []

    def test_what_json_cannot_hold(self, tmp_path: Path) -> None:
        run = stage(tmp_path)
        with pytest.raises(
            RefusedError,
            match=says("'p1/train/e1'", "metadata", "JSON", "Use"),
        ):
            run.add_metadata(a={1})
        assert run.metadata() == {}


def test_a_stage_records_for_its_own_run_only(base: str) -> None:
    stage(base).add_metadata(epochs=3)
    parent = stage(base, "p1/use/e1", {"train": "p1/train/e1"}).parent
    assert parent.metadata() == {"epochs": 3}
    for name, record in {
        "add_metadata": lambda: parent.add_metadata(x=1),
        "add_artifact": lambda: parent.add_artifact("model", "x"),
        "log": lambda: parent.log(1, loss=0.5),
    }.items():
        with pytest.raises(
            RefusedError, match=says("is not that of this process", f"current_run().{name}", "'p1/train/e1'")
        ):
            record()


#: For each field of entries, malformed ones.
MALFORMED = {
    "metadata": ["{", "[]", '{"metadata": 5}'],
    "artifacts": ["{", "[]", '{"artifacts": {"m": {}}}', '{"artifacts": {"m": {"path": "x", "metadata": 5}}}'],
    "sources": ['{"sources": 5}', '{"sources": [{}]}', '{"sources": [5]}', '{"sources": [{"run_id": 5}]}'],
    "steps": [
        '{"steps": [1]}',
        '{"steps": {"loss": {"steps": [], "values": [1]}}}',
        '{"steps": {"loss": {"steps": [], "values": [], "times": [], "count": 0}}}',
    ],
}


@pytest.mark.parametrize("field", MALFORMED)
def test_a_malformed_entry_is_left_out_and_named_once(
    field: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = stage(tmp_path, parents={"train": "p1/train/e0"})
    run.add_metadata(a=1)
    run.add_artifact("model", "s3://models/1")
    run.log(1, loss=0.5)
    run.flush()
    (entry,) = tmp_path.glob(f".torchx_kfp/runs/p1/train/e1/*.{field}*")
    reads = {"metadata": run.metadata, "artifacts": run.artifacts, "sources": run.sources, "steps": run.history}
    for content in MALFORMED[field]:
        entry.write_text(content)
        caplog.clear()
        for _ in range(2):
            assert not reads[field]()
        [message] = caplog.messages
        assert re.search(says(entry, field, "Remove it"), message)


REPLICA = """
import sys
from torchx_kfp.tracking import current_run
run = current_run()
for number in range(20):
    run.add_metadata(**{"shared": number, f"from_{sys.argv[1]}": number})
    run.add_artifact(f"shard-{sys.argv[1]}", f"s3://shards/{sys.argv[1]}")
"""


def test_replicas_of_a_stage_write_at_once(base: str) -> None:
    if base.startswith("memory"):
        pytest.skip("a process has a memory of its own")
    variables = {**os.environ, **environ(base, parents={"a": "p1/a/1", "b": ("p1/b/1", "p1/b/2")})}
    replicas = [subprocess.Popen([sys.executable, "-c", REPLICA, str(rank)], env=variables) for rank in range(4)]
    assert [replica.wait() for replica in replicas] == [0] * 4
    run = stage(base)
    assert run.metadata() == {"shared": 19, **{f"from_{rank}": 19 for rank in range(4)}}
    assert set(run.artifacts()) == {f"shard-{rank}" for rank in range(4)}
    assert [source.run_id for source in run.sources()] == ["p1/a/1", "p1/b/1", "p1/b/2"], "each once"


class TestSources:
    def test_all_that_is_read_is_recorded(self, base: str) -> None:
        parents = {
            "prepare": "p1/prepare/1",
            "trials": ("p1/train/2", "p1/train/1"),
            "none": (),
            "empty": "",
            "again": "p1/prepare/1",
        }
        run = stage(base, "p1/use/e1", parents)
        assert run.sources() == [
            Source("p1/prepare/1", alias="prepare"),
            Source("p1/train/2", alias="trials"),
            Source("p1/train/1", alias="trials"),
        ]
        assert stage(base, "p1/use/e1", parents).sources() == run.sources()

    def test_a_stage_that_reads_nothing_has_none(self, tmp_path: Path) -> None:
        for parents in ({}, {"trials": ()}, {"optional": ""}):
            assert stage(tmp_path, parents=parents).sources() == []

    def test_an_artifact_that_is_used(self, base: str) -> None:
        stage(base).add_artifact("model", "s3://models/1", epochs=3)
        run = stage(base, "p1/use/e1", {"train": "p1/train/e1"})
        for _ in range(2):
            assert run.parent.artifact("model") == Artifact("model", "s3://models/1", {"epochs": 3})
        assert run.sources() == [Source("p1/train/e1", alias="train"), Source("p1/train/e1", "model")]
        assert stage(base).artifact("model").path == "s3://models/1"
        assert stage(base).sources() == [], "a run is no source of its own"


class TestLineage:
    def test_over_fan_ins_and_pipelines(self, base: str) -> None:
        stage(base, "p1/prepare/1").add_artifact("train_set", "s3://data/1")
        trials = [f"p1/train/{number}" for number in range(3)]
        for trial in trials:
            run = stage(base, trial, {"data": "p1/prepare/1"})
            run.parent.artifact("train_set")
            run.add_artifact("model", f"s3://models/{trial}")
            run.add_artifact("log", "s3://logs")
        best = stage(base, "p1/best/1", {"trials": tuple(trials)})
        best.parents["trials"][1].artifact("model")
        stage(base, "p2/deploy/1", {"model": "p1/best/1"})
        stage(base, "p2/monitor/1", {"deployed": "p2/deploy/1", "other": "p3/else/1"})
        stage(base, "p4/unrelated/1", {"x": "p4/other/1"})

        found = stage(base, "p1/best/1").lineage()
        assert found.run_ids == ("p1/best/1",)
        assert found.ancestors == (*trials, "p1/prepare/1")
        assert found.descendants == ("p2/deploy/1", "p2/monitor/1")
        data = Artifact("train_set", "s3://data/1")
        models = [Artifact("model", f"s3://models/{trial}") for trial in trials]
        assert set(map(repr, found.links)) == set(
            map(
                repr,
                [
                    *(Link("p1/prepare/1", trial, "data", (data,), named=True) for trial in trials),
                    # It has recorded that it uses one model, so it does not use others.
                    Link(trials[0], "p1/best/1", "trials"),
                    Link(trials[1], "p1/best/1", "trials", (models[1],), named=True),
                    Link(trials[2], "p1/best/1", "trials"),
                    Link("p1/best/1", "p2/deploy/1", "model"),
                    Link("p2/deploy/1", "p2/monitor/1", "deployed"),
                ],
            )
        )
        down = stage(base, "p1/prepare/1").lineage()
        assert down.ancestors == ()
        assert set(down.descendants) == {*trials, "p1/best/1", "p2/deploy/1", "p2/monitor/1"}

    def test_artifacts_of_a_source_where_nothing_tells_which_are_used(self, base: str) -> None:
        run = stage(base)
        run.add_artifact("model", "s3://models/1")
        run.add_artifact("log", "s3://logs")
        stage(base, "p1/use/1", {"train": "p1/train/e1"})
        (link,) = run.lineage().links
        assert link == Link("p1/train/e1", "p1/use/1", "train", tuple(run.artifacts().values()))

    @pytest.mark.usefixtures("memory_base")
    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.dictionaries(st.integers(0, 9), st.lists(st.integers(0, 9), max_size=4), max_size=10), st.integers(0, 9))
    def test_any_graph(self, graph: dict[int, list[int]], start: int) -> None:
        """The lineage equals the closure, computed by multiplication."""
        edges = {(str(source), str(run)) for run, sources in graph.items() for source in sources}
        closure = set(edges)
        while further := {(a, d) for a, b in closure for c, d in closure if b == c} - closure:
            closure |= further
        tracker = torchx_tracker(f"memory://{uuid.uuid4().hex}")
        for source, run in edges:
            tracker.add_source(run, source)
        found: Any = tracker.lineage(str(start))
        others = {node for node in map(str, range(10)) if node != str(start)}
        assert set(found.ancestors) == {a for a, b in closure if b == str(start)} & others
        assert set(found.descendants) == {b for a, b in closure if a == str(start)} & others
        inside = {str(start), *found.ancestors, *found.descendants}
        links = [(link.source, link.run_id) for link in found.links]
        assert set(links) == {(a, b) for a, b in edges if a in inside and b in inside}
        assert len(links) == len(set(links))


@pytest.mark.parametrize("run_id", ["", "..", "a/../b", "/a", "a//b", "a\0b"])
def test_run_ids_that_are_no_keys(tmp_path: Path, run_id: str) -> None:
    backend = torchx_tracker(tmp_path / "base")
    for action in (
        lambda: backend.add_metadata(run_id, a=1),
        lambda: backend.metadata(run_id),
        lambda: backend.add_artifact(run_id, "model", "x"),
        lambda: backend.add_source(run_id, "other"),
    ):
        with pytest.raises(RefusedError, match="The key "):
            action()
    assert os.listdir(tmp_path) == []


def test_entries_are_json_that_others_can_read(tmp_path: Path) -> None:
    run = stage(tmp_path, "p1/use/1", {"train": "p1/train/1"})
    run.add_metadata(epochs=3)
    run.add_artifact("model", "s3://models/1")
    entries = [json.loads(path.read_text()) for path in sorted(tmp_path.glob(".torchx_kfp/runs/p1/use/1/*"))]
    assert set(entries[0].pop("started")) == {"time", "host", "image"}
    assert entries == [
        {"sources": [{"run_id": "p1/train/1", "artifact": None, "alias": "train"}]},
        {"metadata": {"epochs": 3}},
        {"artifacts": {"model": {"path": "s3://models/1", "metadata": {}}}},
    ]

"""The facts that a run's folder shows while the run goes on, after its end, and after its process was killed."""

import json
import os
import re
import subprocess
import sys

import pytest
from kfp import compiler, dsl

from tests.execution.local.components import scripts, shell, write
from tests.facts import says
from tests.watching import Heard
from torchx_kfp.errors import ArgumentError
from torchx_kfp.execution.pipeline.spec import Component, Dag, Pipeline
from torchx_kfp.execution.runs.history import find_run, find_runs, read_run
from torchx_kfp.execution.runs.journal import Journal
from torchx_kfp.local import (
    RunStarted,
    StageFinished,
    StageResult,
    State,
    load_pipeline,
)

RUN = "import sys; from torchx_kfp.local import Watch, run; run(sys.argv[1], output_dir=sys.argv[2], watch=Watch())"


@dsl.pipeline(name="recorded")
def recorded(x: str = "v") -> str:
    with dsl.ParallelFor(["a", "b"]) as item:
        write(x=item)
    shell(script="exit 0").set_retry(2)
    return write(x=x).outputs["out"]


EMPTY = Pipeline("p", Component("root", "dag", dag=Dag({})), {})


def create(folder, name="run-1"):
    """Return the journal of a new run, which must be recorded completely."""
    return Journal(folder / name, EMPTY, {}, {}, pytest.fail)


def stage(name, state=State.SUCCEEDED):
    return StageFinished(StageResult(name, name, state))


def test_a_run_is_recorded_whole(execute):
    events = []
    result = execute(recorded, {"x": "w"}, watch=Heard(on_event=events.append), parallelism=3, grace=2.5)
    record = read_run(result.folder)
    assert record.events == tuple(events)
    assert (record.run_id, record.pipeline, record.run.state) == (result.run_id, "recorded", "succeeded")
    assert (record.arguments, record.corrupt, record.is_running) == ({"x": "w"}, (), False)
    expected = {"parallelism": 3, "grace": 2.5, "directory": os.getcwd()}
    assert {name: record.options[name] for name in expected} == expected
    assert sorted(record.run.ends, key=lambda stage: stage.name) == sorted(result.stages, key=lambda stage: stage.name)
    assert record.run.duration() == result.duration
    assert record.run.active == []
    assert [event.attempt for event in record.run.attempts_at("shell")] == [1]
    files = {path.name for path in result.folder.iterdir() if path.is_file()}
    assert files == {"events.jsonl", "lock", "pipeline.yaml", "run.json"}
    assert [name for name in files if not (result.folder / name).read_bytes().endswith(b"\n")] == []


@pytest.mark.filterwarnings("ignore:Compiling to JSON:DeprecationWarning")
@pytest.mark.parametrize("suffix", ["yaml", "json"])
def test_the_pipeline_can_be_loaded_again(execute, tmp_path, suffix):
    @dsl.pipeline
    def small(x: float = 1e-05) -> str:
        return write(x=f"é\n{x}").outputs["out"]

    path = tmp_path / f"p.{suffix}"
    compiler.Compiler().compile(small, str(path))
    for way in (path, small, load_pipeline(path)):
        result = execute(way)
        assert result.outputs == {"Output": "é\n0.00001"}
        again = read_run(result.folder).load()
        assert again == load_pipeline(way)
        assert execute(again).outputs == result.outputs


def test_a_run_that_goes_on(execute, tmp_path):
    seen = []

    def look(event):
        record = read_run(find_run(tmp_path / "runs", "latest"))
        seen.append((type(event).__name__, record.run.state, record.run.active, len(record.events)))

    execute(scripts(":"), watch=Heard(on_event=look))
    assert seen == [
        ("RunStarted", "running", [], 1),
        ("StageWaiting", "running", [], 2),
        ("StageStarted", "running", ["shell"], 3),
        ("StageFinished", "running", [], 4),
        ("RunFinished", "succeeded", [], 5),
    ]
    assert read_run(find_run(tmp_path / "runs", "latest")).run.state == "succeeded"


def test_an_events_file_that_ends_anywhere(tmp_path):
    with create(tmp_path) as journal:
        for number in range(3):
            journal.write(stage(f"stage-{number}"))
    path = tmp_path / "run-1" / "events.jsonl"
    whole = path.read_bytes()
    events = read_run(path.parent).events
    for end in range(0, len(whole) + 1, 29):
        for tail, bad in ((b"", 0), (b"\0\0\0", 0), (b"{}\n[\n", 2)):
            path.write_bytes(whole[:end] + tail)
            complete = whole[:end].count(b"\n")
            record = read_run(path.parent)
            assert (record.events, len(record.corrupt)) == (events[:complete], bad)


def test_a_file_that_is_not_a_record_is_not_read_on(tmp_path):
    """Millions of empty lines would take minutes, and their descriptions all memory."""
    with create(tmp_path) as journal:
        journal.write(stage("one"))
    path = tmp_path / "run-1" / "events.jsonl"
    with path.open("ab") as file:
        file.write(b"\n" * 8)
        file.write(path.read_bytes().splitlines(keepends=True)[0] + b"\n" * 5_000_000)
    record = read_run(path.parent)
    assert len(record.events) == 2
    assert [sentence.partition(":")[0] for sentence in record.corrupt] == [
        *(f"Line {number} of {path} is ignored" for number in range(2, 7)),
        f"{path} has more than 1,000 such lines",
    ]
    path.write_bytes(path.read_bytes()[:1000].rstrip(b"\n") + b"\n")
    assert len(read_run(path.parent).corrupt) == 6
    assert read_run(path.parent).corrupt[-1] == f"So are 3 more lines of {path}."


def with_small_files(folder, room):
    """Run the pipeline where no file may be larger than this; a negative number is room besides the pipeline."""
    path = folder / "p.yaml"
    compiler.Compiler().compile(recorded, str(path))
    limit = room if room > 0 else path.stat().st_size - room
    code = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit})); {RUN}"
    return subprocess.run([sys.executable, "-c", code, path, folder / "runs"], capture_output=True, text=True)


def test_a_full_disk_does_not_end_the_run(tmp_path):
    # There is room for only half of some event.
    done = with_small_files(tmp_path, -500)
    assert done.returncode == 0, done.stderr
    (folder,) = find_runs(tmp_path / "runs")
    assert done.stderr == (
        f"Some events of this run cannot be recorded in {folder}: the file is larger than a limit allows (ulimit "
        "-f). The run continues, but may look unfinished later.\n"
    )
    assert (folder / "events.jsonl").read_bytes().endswith(b"}\n")
    assert read_run(folder).corrupt == ()


def test_a_disk_that_is_full_as_a_run_begins(tmp_path):
    done = with_small_files(tmp_path, 1000)
    assert done.returncode == 1
    said = done.stderr.splitlines()[-1]
    assert re.search(says("cannot be recorded", "the file is larger than a limit allows", "--output-dir"), said)
    assert list((tmp_path / "runs").iterdir()) == [], "nothing that is not a run"


def test_what_json_has_not(tmp_path):
    warnings = []
    with Journal(tmp_path / "run-1", EMPTY, {}, {}, warnings.append) as journal:
        for _ in range(2):
            journal.write(StageFinished(StageResult("a", "a", State.SUCCEEDED, outputs={"x": object()})))
        journal.write(stage("b"))
    assert len(warnings) == 1
    assert "TypeError: Object of type object is not JSON serializable. The run continues" in warnings[0]
    assert [end.name for end in read_run(tmp_path / "run-1").run.ends] == ["b"]


def test_a_request_that_cannot_be_read(tmp_path):
    with create(tmp_path) as journal:
        journal.write(RunStarted("p", "run-1", tmp_path, arguments={"x": 1}))
    path = tmp_path / "run-1" / "run.json"
    for text in ("", "[]", "{", "\0"):
        path.write_text(text)
        record = read_run(path.parent)
        assert (record.run_id, record.pipeline, record.arguments) == ("run-1", "p", {"x": 1})
        assert len(record.corrupt) == 1
        assert record.corrupt[0].startswith(f"{path} cannot be read: ")
    path.write_text(json.dumps({"version": 2}))
    with pytest.raises(ArgumentError, match=says("another version", "format version 2", "reads 1", "Use")):
        read_run(path.parent)
    assert find_runs(tmp_path) == [path.parent]
    with pytest.raises(ArgumentError, match=says("is not the folder of a run", "events.jsonl is missing")):
        read_run(tmp_path)


NAMES = ["digits-20260101-120000-aaaaaa", "digits-20260102-120000-bbbbbb", "digits", "hello-20260101-120000-cccccc"]


@pytest.fixture
def runs(tmp_path):
    """A folder with four runs and something else."""
    for name in NAMES:
        create(tmp_path, name).close()
    (tmp_path / ".cache").mkdir()
    (tmp_path / "notes.txt").write_text("")
    return tmp_path


def test_a_run_is_found_by_what_is_unique(runs):
    for name, found in {
        NAMES[0]: NAMES[0],
        "digits": "digits",
        "digits-20260102": NAMES[1],
        "bbbbbb": NAMES[1],
        "h": NAMES[3],
        "latest": NAMES[3],
    }.items():
        assert find_run(runs, name) == runs / found


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("digits-", ["'digits-' matches 2 runs in", f": {NAMES[1]}, {NAMES[0]}. "]),
        ("helo", ["There is no run 'helo' in", f"Did you mean '{NAMES[3]}'?", ", ".join(NAMES[:0:-1])]),
        ("zzz", ["There is no run 'zzz' in", f"Its runs, newest first: {NAMES[3]}"]),
        *((name, [f"There is no run '{name}' in"]) for name in ("", ".cache", "notes.txt", "../digits")),
    ],
)
def test_a_run_that_is_not_there(runs, name, facts):
    with pytest.raises(ArgumentError, match=says(*facts, repr(str(runs)))):
        find_run(runs, name)

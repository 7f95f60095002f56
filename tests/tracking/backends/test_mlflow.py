"""The tracker on MLflow, with a real server and MLflow's own client."""

from __future__ import annotations

import json
import math
import re
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from torchx.tracker.api import TrackerBase, build_trackers

from tests.events import finished_stages
from tests.facts import says
from tests.modules import needs
from tests.pipelines import regenerate
from tests.tracking.stages import application, environ
from torchx_kfp.tracking import FsspecResultTracker, Point, open_run

if TYPE_CHECKING:
    from mlflow import MlflowClient

pytestmark = [needs("mlflow", "the group `dev` has MLflow"), pytest.mark.mlflow]

RUN = "run/train/pod-1"


@pytest.fixture
def client(mlflow_server: str) -> MlflowClient:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=mlflow_server)


@pytest.fixture
def experiment(monkeypatch: pytest.MonkeyPatch) -> str:
    """An experiment for this test only."""
    name = f"test-{uuid.uuid4().hex}"
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", name)
    return name


@pytest.fixture
def trackers() -> Iterator[Callable[[str | None], Any]]:
    """Make trackers as TorchX makes them for an application."""
    made: list[Any] = []

    def make(config: str | None) -> Any:
        made.extend(build_trackers({"mlflow": config}))
        return made[-1]

    yield make
    for each in made:
        each._open.clear()  # otherwise, this process would tell the server about its runs when it ends


@pytest.fixture
def tracker(mlflow_server: str, experiment: str, trackers: Any) -> TrackerBase:
    return trackers(mlflow_server)


def runs(client: MlflowClient, experiment: str) -> list[Any]:
    """Return all runs of an experiment, including deleted ones."""
    found = client.get_experiment_by_name(experiment)
    return [] if found is None else list(client.search_runs([found.experiment_id], run_view_type=3))


def the_run(client: MlflowClient, experiment: str) -> Any:
    (run,) = runs(client, experiment)
    return run


def recorded(client: MlflowClient, experiment: str, name: str = "train/pod-1") -> dict[str, object]:
    """Return the metrics, parameters and tags of a run, without the tags of MLflow and of the tracker itself."""
    (run,) = [run for run in runs(client, experiment) if run.info.run_name == name]
    tags = {name: text for name, text in run.data.tags.items() if not name.startswith(("mlflow.", "torchx."))}
    return {**run.data.metrics, **run.data.params, **tags}


def test_numbers_are_metrics_and_the_rest_tags(tracker: Any, client: MlflowClient, experiment: str) -> None:
    tracker.add_metadata(RUN, accuracy=0.5, epochs=3, done=True, model="s3://x", layers=[1, 2], nothing=None)
    run = the_run(client, experiment)
    assert run.data.metrics == {"accuracy": 0.5, "epochs": 3.0, "done": 1.0}
    tags = {name: value for name, value in run.data.tags.items() if not name.startswith("mlflow.")}
    assert tags == {
        "model": "s3://x",
        "layers": "[1, 2]",
        "nothing": "null",
        "torchx.run_id": RUN,
        "torchx.pipeline_run": "run",
        "torchx.stage": "train",
    }
    assert run.info.run_name == "train/pod-1"
    assert run.info.status == "RUNNING"


def test_nan_and_infinities(tracker: Any, client: MlflowClient, experiment: str) -> None:
    tracker.add_metadata(RUN, nan=math.nan, up=math.inf, down=-math.inf, large=10**400)
    # These are the values that the server keeps.
    run = the_run(client, experiment)
    assert math.isnan(run.data.metrics.pop("nan"))
    assert run.data.metrics == {"up": sys.float_info.max, "down": -sys.float_info.max}
    assert run.data.tags["large"] == str(10**400)


def test_the_latest_value_counts(
    tracker: Any, client: MlflowClient, experiment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow uses the largest value of one millisecond."""
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: 1_700_000_000.0)
        for loss in (3.0, 1.0, 2.0, 0.5):
            tracker.add_metadata(RUN, loss=loss, note=str(loss))
    assert recorded(client, experiment) == {"loss": 0.5, "note": "0.5"}
    history = client.get_metric_history(the_run(client, experiment).info.run_id, "loss")
    assert [entry.value for entry in sorted(history, key=lambda entry: entry.timestamp)] == [3.0, 1.0, 2.0, 0.5]


def test_many_values_at_once(tracker: Any, client: MlflowClient, experiment: str) -> None:
    given = {f"m{index}": float(index) for index in range(250)} | {f"t{index}": "x" for index in range(150)}
    tracker.add_metadata(RUN, **given)
    assert recorded(client, experiment) == given


def test_parameters_are_flattened(tracker: Any, client: MlflowClient, experiment: str) -> None:
    given = {
        "lr": 0.1,
        "optimizer": "adam",
        "nesterov": True,
        "layers": [64, 32],
        "schedule": None,
        "config": {"data": {"split": 0.2}, "seed": 7},
        "empty": {},
        **{f"p{number}": number for number in range(150)},
    }
    tracker.add_parameters(RUN, given)
    params = the_run(client, experiment).data.params
    expected = {
        "lr": "0.1",
        "optimizer": "adam",
        "nesterov": "True",
        "layers": "[64, 32]",
        "schedule": "null",
        "config.data.split": "0.2",
        "config.seed": "7",
        "empty": "{}",
        **{f"p{number}": str(number) for number in range(150)},
    }
    assert params == expected
    assert the_run(client, experiment).data.metrics == {}


def test_a_parameter_that_changes_is_a_tag(
    tracker: Any, client: MlflowClient, experiment: str, caplog: pytest.LogCaptureFixture
) -> None:
    """MLflow rejects a different value, and with it everything in the same request."""
    tracker.add_parameters(RUN, {"lr": 0.1, "epochs": 3})
    tracker.add_parameters("run/other/1", {"lr": 0.3})
    tracker._open.clear()  # as in a process that torchrun starts again
    tracker._parameters.clear()
    tracker.add_parameters(RUN, {"lr": 0.2, "epochs": 3, "seed": 7})
    assert recorded(client, experiment, "other/1") == {"lr": "0.3"}
    (run,) = [run for run in runs(client, experiment) if run.info.run_name == "train/pod-1"]
    assert run.data.params == {"lr": "0.1", "epochs": "3", "seed": "7"}
    assert run.data.tags["lr"] == "0.2"
    (record,) = [record for record in caplog.records if record.name.startswith("torchx_kfp")]
    assert record.getMessage() == "MLflow keeps the first value of a parameter. Others are tags: lr."


def test_steps_are_a_history(tracker: Any, client: MlflowClient, experiment: str) -> None:
    points = [Point(step, 1 / (step + 1), 1_700_000_000 + step) for step in range(2500)]
    tracker.log_steps(RUN, {"loss": points, "c:d": [Point(7, math.nan, 1_700_000_000.5)]})
    tracker.add_metadata(RUN, loss=0.25, accuracy=0.5)
    run = the_run(client, experiment)
    assert run.data.metrics["loss"] == 0.25, "the result comes behind the last step"
    history = client.get_metric_history(run.info.run_id, "loss")
    stored = sorted((entry.step, entry.timestamp, entry.value) for entry in history)
    assert stored[:2500] == [(point.step, int(point.time * 1000), point.value) for point in points]
    assert [(step, value) for step, _, value in stored[2500:]] == [(2499, 0.25)]
    (entry,) = client.get_metric_history(run.info.run_id, "c_d")
    assert (entry.step, entry.timestamp, math.isnan(entry.value)) == (7, 1_700_000_000_500, True)
    assert client.get_metric_history(run.info.run_id, "accuracy")[0].step == 0


#: Names, and what MLflow accepts of them. Each is warned of once in a process: other tests use other names.
NAMES = [
    ("l2norm/mean", "l2norm/mean"),
    ("größe", "größe"),
    ("a:b", "a_b"),
    ("50% of $", "50_ of _"),
    ("/a//b/./../c/", "a/b/c"),
    ("..x", "_..x"),
    ("..", "_"),
    ("mlflow.runName", "_mlflow.runName"),
    ("torchx.run_id", "_torchx.run_id"),
    ("x" * 300, "x" * 211 + "-0d4e2ca9"),
]


def test_names_are_changed_as_mlflow_accepts_them(
    tracker: Any, client: MlflowClient, experiment: str, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("x")
    for name, _ in NAMES:
        for _ in range(2):
            tracker.add_metadata(RUN, **{name: 1.5})
        tracker.add_metadata("run/other/1", **{name: "text"})
        tracker.add_artifact(RUN, name, str(tmp_path / "file"))
    taken = {taken for _, taken in NAMES}
    assert len(taken) == len(NAMES)
    assert recorded(client, experiment) == dict.fromkeys(taken, 1.5)
    assert recorded(client, experiment, "other/1") == dict.fromkeys(taken, "text")
    (run,) = [run for run in runs(client, experiment) if run.info.run_name == "train/pod-1"]
    assert {f"torchx.artifact.{name}" for name in taken} <= set(run.data.tags)
    assert [record.getMessage() for record in caplog.records if record.name.startswith("torchx_kfp")] == [
        f"MLflow does not accept the name {name!r}: it is {taken!r} there." for name, taken in NAMES if name != taken
    ]


def test_artifacts_are_uploaded_or_registered(
    tracker: Any, client: MlflowClient, experiment: str, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "a.txt").write_text("deep")
    (tmp_path / "model.bin").write_text("weights")
    tracker.add_artifact(RUN, "model", str(tmp_path / "model.bin"), {"size": 7})
    tracker.add_artifact(RUN, "url", f"file://{tmp_path}/model.bin")
    tracker.add_artifact(RUN, "folder", str(folder))
    tracker.add_artifact(RUN, "remote", "s3://bucket/model")
    tracker.add_artifact(RUN, "metadata", "", {"a": [1]})
    run = the_run(client, experiment)
    base = f"runs:/{run.info.run_id}"
    paths = {
        "model": f"{base}/model/model.bin",
        "url": f"{base}/url/model.bin",
        "folder": f"{base}/folder",
        "remote": "s3://bucket/model",
        "metadata": "",
    }
    assert {name: run.data.tags[f"torchx.artifact.{name}"] for name in paths} == paths
    metadata = {name: json.loads(run.data.tags[f"torchx.artifact_metadata.{name}"]) for name in paths}
    assert metadata == {
        "model": {"size": 7},
        "url": {},
        "folder": {},
        "metadata": {"a": [1]},
        "remote": {},
    }
    stored = {path: client.download_artifacts(run.info.run_id, path, str(tmp_path)) for path in ("model", "folder")}
    assert Path(stored["model"], "model.bin").read_text() == "weights"
    assert Path(stored["folder"], "deep", "a.txt").read_text() == "deep"


def test_what_a_run_reads_is_recorded(
    tracker: Any, client: MlflowClient, experiment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = [f"run/prepare/{number}" for number in range(150)]
    for name, text in environ("base", RUN, {"prepare": sources}, {"mlflow": None}).items():
        monkeypatch.setenv(name, text)
    tracker.add_metadata(RUN, loss=2.0)
    tracker.add_metadata("run/other/1", loss=2.0)
    tags = {run.info.run_name: run.data.tags.items() for run in runs(client, experiment)}
    found = {
        run: [json.loads(text)["run_id"] for name, text in tags[run] if name.startswith("torchx.source.")]
        for run in tags
    }
    assert {run: sorted(found[run]) for run in found} == {"train/pod-1": sorted(sources), "other/1": []}


@pytest.mark.parametrize(
    "run_id", ['run/it\'s "quoted"/1', "50%27/\\/x", "local_cwd://torchx/train-x1", "plain", "é{}`"]
)
def test_any_run_id(tracker: Any, client: MlflowClient, experiment: str, run_id: str) -> None:
    for _ in range(2):
        tracker.add_metadata(run_id, a=1)
        tracker._open.clear()
    assert the_run(client, experiment).data.metrics == {"a": 1.0}


def test_reading_is_refused(tracker: Any) -> None:
    for method in (tracker.metadata, tracker.artifacts, tracker.sources, tracker.lineage):
        with pytest.raises(NotImplementedError, match=says("MLflow", "copies", "MlflowClient", "current_run()")):
            method(RUN)
    with pytest.raises(NotImplementedError, match=says("copies")):
        tracker.run_ids()


def test_the_experiment_is_the_one_of_mlflows_variables(
    mlflow_server: str,
    client: MlflowClient,
    monkeypatch: pytest.MonkeyPatch,
    experiment: str,
    trackers: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    trackers(mlflow_server).add_metadata(RUN, a=1)
    identifier = client.get_experiment_by_name(experiment).experiment_id
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", identifier)
    trackers(mlflow_server).add_metadata(RUN, b=2)
    assert recorded(client, experiment) == {"a": 1.0, "b": 2.0}
    monkeypatch.delenv("MLFLOW_EXPERIMENT_ID")
    stage = str(uuid.uuid4())
    trackers(mlflow_server).add_metadata(f"run/{stage}/1", a=2)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "torchx-kfp")
    # MLflow itself reads this variable.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_server)
    for config in (None, ""):
        trackers(config).add_metadata(f"run/{stage}/1", **{f"from_{config}": 1})
    assert recorded(client, "torchx-kfp", f"{stage}/1") == {"a": 2.0, "from_None": 1.0, "from_": 1.0}
    client.delete_experiment(identifier)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", experiment)
    trackers(mlflow_server).add_metadata("run/other/1", a=1)
    assert re.search(says(f"'{experiment}'", "deleted", "results under the tracker base are complete"), caplog.text)


def test_an_experiment_that_cannot_be_created(
    tracker: Any, experiment: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from mlflow import MlflowException

    def create_experiment(name: str) -> None:
        raise MlflowException(f"no permission to create {name}")

    monkeypatch.setattr(tracker._client, "create_experiment", create_experiment)
    tracker.add_metadata(RUN, a=1)
    assert re.search(says(f"MlflowException: no permission to create {experiment}"), caplog.text)


def test_a_tracking_uri_in_the_home_folder(
    tmp_path: Path, experiment: str, trackers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    trackers("~/mlruns").add_metadata(RUN, a=1)
    assert (tmp_path / "mlruns").is_dir()


def stage(base: Path, uri: str) -> dict[str, str]:
    return environ(base, RUN, {"prepare": "run/prepare/1"}, {"mlflow": uri})


#: Runs processes that have already loaded MLflow, which takes seconds. Each group starts when the one before has ended,
#: and its processes begin at the same time.
FORKS = """
import atexit, json, os, sys, time
# At the very end: freeing all modules would take longer than everything else.
atexit.register(lambda: (sys.stdout.flush(), sys.stderr.flush(), os._exit(0)))
import mlflow, torchx.tracker.api
for group in json.loads(sys.argv[1]):
    start, children = time.time() + 0.5, []
    for environ, code in group:
        child = os.fork()
        if not child:
            os.environ.update(environ)
            time.sleep(max(0, start - time.time()))
            exec(code)
            sys.exit()
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
os._exit(0)
"""

PUT = "from torchx_kfp.tracking import current_run; current_run().put(a=1.5, text='x')\n"


def run_processes(base: Path, uri: str, *groups: list[tuple[str, str]]) -> subprocess.CompletedProcess[str]:
    """Run processes; each is the stage of an execution id, and runs a program. Those of a group are replicas."""
    given = [
        [
            (environ(base, run_id, trackers={"mlflow": uri}) | {"TORCHX_REPLICA_ID": str(number)}, code)
            for number, (run_id, code) in enumerate(group)
        ]
        for group in groups
    ]
    command = [sys.executable, "-W", "ignore", "-c", FORKS, json.dumps(given)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=200)


ENDS = {
    "": "FINISHED",
    "import sys; sys.exit(0)": "FINISHED",
    "raise ValueError": "FAILED",
    "raise KeyboardInterrupt": "FAILED",
    "try: 1 / 0\nexcept ZeroDivisionError: pass": "FINISHED",
    # A child that ends like a Python process does not end the run.
    "import os\nif os.fork(): os.wait(); os._exit(0)": "RUNNING",
}


def test_the_end_of_the_process(mlflow_server: str, client: MlflowClient, experiment: str, tmp_path: Path) -> None:
    fails = PUT + "raise ValueError"
    gone = PUT + "mlflow.MlflowClient.set_terminated = lambda *_: 1 / 0  # as good as gone"
    done = run_processes(
        tmp_path,
        mlflow_server,
        *([(f"r/end/{number}", PUT + end)] for number, end in enumerate(ENDS)),
        [("r/again/1", fails)],
        [("r/again/1", PUT)],  # started again, like by torchrun
        [("r/gone/1", gone)],
    )
    expected = {f"end/{number}": status for number, status in enumerate(ENDS.values())}
    expected |= {"again/1": "FINISHED", "gone/1": "RUNNING"}
    found = {run.info.run_name: run for run in runs(client, experiment)}
    assert {name: run.info.status for name, run in found.items()} == expected
    assert all(run.data.metrics == {"a": 1.5} for run in found.values())
    assert found["end/0"].info.end_time >= found["end/0"].info.start_time
    assert done.stdout == "", "nothing of MLflow's in the application's output"
    assert "The end of the execution 'r/gone/1' could not be reported to MLflow: division by zero" in done.stderr


def test_only_the_first_process_of_a_stage_records(
    mlflow_server: str, client: MlflowClient, experiment: str, tmp_path: Path
) -> None:
    put = "from torchx_kfp.tracking import current_run; current_run().put({'rank%d': 1})\n"
    put += "from torchx.tracker import AppRun; AppRun.run_from_env().add_metadata(app%d=1)"
    run_processes(tmp_path, mlflow_server, [("r/together/1", put % (rank, rank)) for rank in range(3)])
    assert recorded(client, experiment, "together/1") == {"rank0": 1.0, "app0": 1.0}


def test_results_of_a_stage(mlflow_server: str, client: MlflowClient, experiment: str, tmp_path: Path) -> None:
    """Everything together, with TorchX's own access to the trackers, and an active run of the application."""
    code = """
import mlflow, os
from torchx.tracker import AppRun
from torchx_kfp.tracking import current_run
mlflow.set_tracking_uri(os.environ["TORCHX_TRACKER_MLFLOW_CONFIG"])
with mlflow.start_run(run_name="mine"):
    run = current_run()
    run.put(accuracy=0.5, loss=float("nan"), best=True)
    run.put({"l2norm/mean": 2, "run_id": "x"})
    open("model.bin", "w").write("weights")
    run.add_artifact("model", "model.bin", size=7)
    app_run = AppRun.run_from_env()
    app_run.add_metadata(epochs=3)
    run.add_metadata(lr=0.1)
    for step in range(3):
        run.log(step, {"train/loss": 1 - step / 4})
    mlflow.log_metric("own", 1)
print([type(backend).__name__ for backend in app_run.backends], [s.parent.job_id() for s in app_run.sources()])
"""
    done = application(code, stage(tmp_path / "base", mlflow_server), cwd=tmp_path, check=True)
    assert "['StageTracker', 'MlflowTracker'] ['run/prepare/1']\n" in done.stdout
    found = {run.info.run_name: run for run in runs(client, experiment)}
    assert set(found) == {"mine", "train/pod-1"}
    assert found["mine"].data.metrics == {"own": 1.0}
    metrics = found["train/pod-1"].data.metrics
    assert math.isnan(metrics.pop("loss"))
    assert metrics == {"accuracy": 0.5, "best": 1.0, "l2norm/mean": 2.0, "epochs": 3.0, "train/loss": 0.5}
    assert found["train/pod-1"].data.params == {"lr": "0.1"}
    logged = client.get_metric_history(found["train/pod-1"].info.run_id, "train/loss")
    assert sorted((entry.step, entry.value) for entry in logged) == [(0, 1.0), (1, 0.75), (2, 0.5)]
    tags = found["train/pod-1"].data.tags
    assert [json.loads(text)["run_id"] for name, text in tags.items() if name.startswith("torchx.source.")] == [
        "run/prepare/1"
    ]
    assert json.loads(tags["torchx.artifact_metadata.model"]) == {"size": 7}
    assert set(FsspecResultTracker(tmp_path / "base")[RUN]) == {"accuracy", "loss", "best", "l2norm/mean", "run_id"}


def test_a_server_that_is_not_there(tmp_path: Path, experiment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    done = application(PUT, stage(tmp_path / "base", "http://127.0.0.1:1"), cwd=tmp_path, check=True)
    (warning,) = [line for line in done.stderr.splitlines() if line.startswith("The tracker 'mlflow' failed")]
    assert "results under the tracker base are complete" in warning
    assert FsspecResultTracker(tmp_path / "base")[RUN] == {"a": 1.5, "text": "x"}


def test_a_server_that_hangs(tmp_path: Path, experiment: str) -> None:
    """Metrics of steps waited for it, were not stored, and a signal lost them."""
    code = """
import os, pickle
from torchx_kfp.tracking import current_run
run = current_run()
for step in range(200):
    run.log(step, loss=step)
run.flush()
run.put(a=1.5)
assert pickle.loads(pickle.dumps(run)) == run
os.kill(os.getpid(), 9)
"""
    with socket.create_server(("127.0.0.1", 0)) as server:  # it accepts, and does not answer
        uri = f"http://127.0.0.1:{server.getsockname()[1]}"
        began = time.monotonic()
        done = application(code, stage(tmp_path / "base", uri), cwd=tmp_path)
    assert time.monotonic() - began < 60, "MLflow's own client takes many minutes"
    assert done.returncode == -9
    assert len(re.findall("The tracker 'mlflow' failed", done.stderr)) == 1
    tracker = FsspecResultTracker(tmp_path / "base")
    assert (open_run(tracker.tracker_base, RUN).history()["loss"].count, tracker[RUN]) == (200, {"a": 1.5})


def test_a_server_that_refuses_a_record_gets_the_next_ones(
    tracker: Any, client: MlflowClient, experiment: str, caplog: pytest.LogCaptureFixture
) -> None:

    tracker.add_metadata(RUN, a=1)
    mlflow_run = the_run(client, experiment).info.run_id
    client.delete_run(mlflow_run)
    tracker.add_metadata(RUN, a=2)
    assert "in MLflow" not in caplog.text
    assert "results under the tracker base are complete" in caplog.text
    client.restore_run(mlflow_run)
    tracker.add_metadata(RUN, a=3)
    assert recorded(client, experiment) == {"a": 3.0}


def test_names_that_become_one(
    tracker: Any, client: MlflowClient, experiment: str, caplog: pytest.LogCaptureFixture
) -> None:
    tracker.add_parameters(RUN, {"x.y": 1, "x": {"y": 2}, "n:1": 0.5})
    tracker.add_metadata(RUN, **{"n:1": 0.5})
    tracker.add_metadata(RUN, n_1=0.75)
    assert "('x.y',) and ('x', 'y') have the same name in MLflow, 'x.y'" in caplog.text
    assert "'n:1' and 'n_1' have the same name in MLflow, 'n_1'" in caplog.text
    assert the_run(client, experiment).data.params == {"x.y": "2", "n_1": "0.5"}


def test_a_function_that_raises_has_failed(
    mlflow_server: str, client: MlflowClient, experiment: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(
        "from torchx_kfp.tracking import current_run\n"
        "def fit():\n    current_run().put(a=1.5)\n    raise RuntimeError('diverged')\n"
        "def odd():\n    current_run().put(a=1.5)\n    return {'x': object()}\n"
    )
    for number, function in enumerate(("fit", "odd")):
        variables = environ(tmp_path / "base", f"run/{function}/1", trackers={"mlflow": mlflow_server})
        code = f"from torchx_kfp.tracking import call; call.main(['-m', 'train', '{function}'])"
        assert application(code, variables, cwd=tmp_path).returncode == 1
        assert [run.info.status for run in runs(client, experiment)] == ["FAILED"] * (number + 1)


@needs("sklearn", "the digits applications need the extra `examples`")
def test_results_of_the_pipeline_experiments(mlflow_server: str, client: MlflowClient, tmp_path: Path) -> None:
    command = [str(Path(sys.executable).parent / "torchx-kfp"), "run"]
    command += [str(regenerate.REPOSITORY / "pipelines/experiments.py"), "--tracker-base", "demo-results/tracker"]
    command += ["-p", f"tracking_uri={mlflow_server}", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    stages = finished_stages(done.stdout)
    results = {stage["execution_id"]: stage["results"] for stage in stages}

    experiment = client.get_experiment_by_name("digits")
    recorded = {run.data.tags["torchx.run_id"]: run for run in client.search_runs([experiment.experiment_id])}
    assert set(recorded) == {run_id for run_id in results if run_id.split("/")[1] != "prepare"}
    assert [run_id.split("/")[1] for run_id in sorted(recorded)] == ["select", "train", "train", "train"]
    for run_id, run in recorded.items():
        numbers = {name: value for name, value in results[run_id].items() if not isinstance(value, str)}
        assert run.data.metrics == pytest.approx(numbers)
        assert run.info.status == "FINISHED"
        assert set(run.data.params) == ({"C", "gamma"} if "/train/" in run_id else set())
        assert run.data.tags["model"] == results[run_id]["model"]

    # In MLflow's UI, a user asks which of the trials is the best.
    trials = "tags.`torchx.stage` = 'train'"
    best = client.search_runs([experiment.experiment_id], trials, order_by=["metrics.accuracy DESC"])[0]
    (selected,) = [run for run_id, run in results.items() if "/select/" in run_id]
    assert best.data.tags["torchx.run_id"] == selected["best"]
    assert best.data.metrics["accuracy"] > 0.9
    # The model itself was uploaded.
    assert [file.path for file in client.list_artifacts(best.info.run_id, "model")] == ["model/model.joblib"]

"""An application's use of its run, and of the runs that it reads."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.facts import says
from tests.tracking import stages
from torchx_kfp.contract import protocol
from torchx_kfp.errors import (
    NotInStageError,
    NotRecordedError,
    RefusedError,
    TrackerError,
    UnknownNameError,
)
from torchx_kfp.tracking import FsspecResultTracker, Run, current_run, open_run


def stage(base: object, run_id: str = "p1/eval/e1", parents: stages.Parents | None = None) -> Run:
    return stages.stage(base, run_id, parents)


class TestOwnResults:
    def test_later_results_join_the_earlier(self, base: str) -> None:
        stage(base).put(loss=0.5, epoch=1)
        stage(base).put(epoch=2, accuracy=0.9)
        assert stage(base).results() == {"loss": 0.5, "epoch": 2, "accuracy": 0.9}

    def test_what_others_recorded_stays(self, tmp_path: Path) -> None:
        """TorchX's tracker accepts values of any type."""
        (tmp_path / "p1/eval").mkdir(parents=True)
        (tmp_path / "p1/eval/e1").write_text('{"curve": [1, 2], "note": null}')
        stage(tmp_path).put(loss=0.5)
        assert stage(tmp_path).results() == {"curve": [1, 2], "note": None, "loss": 0.5}

    @pytest.mark.parametrize("left", ["", '{"loss": 0.', "[1]"])
    def test_what_a_killed_writer_left_is_replaced(
        self, left: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        (tmp_path / "p1/eval").mkdir(parents=True)
        (tmp_path / "p1/eval/e1").write_text(left)
        stage(tmp_path).put(loss=0.5)
        assert stage(tmp_path).results() == {"loss": 0.5}
        assert caplog.messages[0].startswith(f"These results are replaced: {tmp_path}/p1/eval/e1 ")

    def test_runs_with_the_same_id_and_base_are_equal(self, tmp_path: Path) -> None:
        parents = {"train": "p1/train/t1", "trials": ("p1/t/1", "p1/t/2")}
        one, other = stage(tmp_path, parents=parents), stage(tmp_path, parents=parents)
        assert one == other
        assert dict(one.parents) == dict(other.parents)
        assert {one, other, one.parent, one.parents["train"]} == {one, one.parent}
        assert one != stage(tmp_path / "elsewhere")

    def test_after_a_fork(self, base: str) -> None:
        """Clients of object stores do not survive a fork, and a data loader's workers are forks."""
        run = stage(base)
        run.put(before=1)
        if base.startswith("memory"):
            pytest.skip("a fork has a memory of its own")
        with warnings.catch_warnings():
            # Since 3.12, Python warns about forking a process with threads such as fsspec's, which is tested here.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if not child:
            code = 1
            try:
                run.put(forked=2)
                code = 0
            except TrackerError as error:  # what an old fsspec cannot do is said
                code = 2 if re.search(says("forked", "fsspec", "newer", "spawn"), str(error)) else 1
            finally:
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code == 0 or (code == 2 and base.startswith("s3"))
        assert run.results() == ({"before": 1} if code else {"before": 1, "forked": 2})

    def test_a_name_that_was_not_recorded(self, base: str) -> None:
        run = stage(base)
        with pytest.raises(KeyError, match=says("The execution 'p1/eval/e1' has no result 'loss'.", "none")):
            run.results()["loss"]
        run.put(loss=0.1)
        run.add_metadata(epochs=3)
        run.add_artifact("model", "s3://models/1")
        parents: stages.Parents = {"one": run.id, "all": [run.id]}
        reader = stage(base, "p1/judge/j1", parents).parents
        one, (of_many,) = reader["one"], reader["all"]
        assert isinstance(one, Run)
        tracker = FsspecResultTracker(base)
        for results in (
            run.results(),
            one.results(),
            of_many.results(),
            tracker.get(run.id),
            tracker.get_many([run.id])[run.id],
            dict(tracker.items())[run.id],
        ):
            assert results == {"loss": 0.1}
            with pytest.raises(
                UnknownNameError, match=says(f"The execution '{run.id}' has no result 'los'.", "'loss'?")
            ):
                results["los"]
        with pytest.raises(UnknownNameError, match=says("has no metadata key 'epoch'.", "'epochs'?")):
            one.metadata()["epoch"]
        with pytest.raises(UnknownNameError, match=says("has no artifact 'modle'.", "'model'?")):
            one.artifacts()["modle"]
        with pytest.raises(NotRecordedError, match=says("has no artifact 'modle'.", "'model'?", "add_artifact(")):
            one.artifact("modle")


class TestParents:
    def test_parents_by_alias(self, base: str) -> None:
        ids = {"prepare": "p1/prepare/e1", "trials": ("p1/train/e3", "p1/train/e1", "p1/train/e2"), "none": ()}
        for run_id in ("p1/prepare/e1", *ids["trials"]):
            stage(base, run_id).put(name=run_id[-2:])
        run = stage(base, parents=ids)
        assert list(run.parents) == ["prepare", "trials", "none"]
        assert len(run.parents) == 3
        prepare, trials = run.parents["prepare"], run.parents["trials"]
        assert isinstance(prepare, Run)
        assert prepare.results() == {"name": "e1"}
        assert isinstance(trials, list)
        assert [trial.id for trial in trials] == list(ids["trials"]), "in loop order"
        assert [trial.results()["name"] for trial in trials] == ["e3", "e1", "e2"]
        assert run.parents["none"] == []
        assert repr(stage(base, parents={"a": "x/y/z"}).parents) == "{'a': Run('x/y/z')}"

    def test_an_unknown_alias(self, tmp_path: Path) -> None:
        parents = stage(tmp_path, parents={"train": "p1/train/e1", "prepare": "p1/prepare/e1"}).parents
        with pytest.raises(KeyError) as caught:
            parents["trian"]
        assert isinstance(caught.value, UnknownNameError)
        assert str(caught.value) == (
            "The stage 'p1/eval/e1' has no parent 'trian'. Did you mean 'train'? Its parents: 'train', 'prepare'. "
            "Declare what it reads in the pipeline: stages.task(app, reads={alias: task})."
        )
        assert "trian" not in parents
        assert parents.get("trian") is None
        with pytest.raises(
            UnknownNameError,
            match=says("'x'", "'p1/eval/e1'", "stages.task(app, reads={alias: task})"),
        ):
            stage(tmp_path).parents["x"]

    def test_a_stage_that_reads_nothing_has_no_parent(self, tmp_path: Path) -> None:
        with pytest.raises(UnknownNameError, match=says("'p1/eval/e1'", "stages.task(app, reads=other_task)")):
            _ = stage(tmp_path).parent
        assert dict(stage(tmp_path).parents) == {}

    def test_a_fan_in_is_the_first(self, tmp_path: Path) -> None:
        assert stage(tmp_path, parents={"trials": ("a/b/2", "a/b/1")}).parent.id == "a/b/2"
        with pytest.raises(UnknownNameError, match=says("fan-in", "run.parents[", "'p1/eval/e1'")):
            _ = stage(tmp_path, parents={"trials": (), "b": "x/y/z"}).parent

    def test_a_parent_is_only_read(self, tmp_path: Path) -> None:
        parent = stage(tmp_path, parents={"train": "p1/train/e1"}).parent
        with pytest.raises(RefusedError, match=says("'p1/train/e1'", "current_run().put")):
            parent.put(x=1)
        for name in ("parent", "parents"):
            with pytest.raises(UnknownNameError, match=says("'p1/train/e1'", "current_run()")):
                getattr(parent, name)
        assert FsspecResultTracker(tmp_path).keys() == []

    def test_the_parent_of_torchx_alone(self, tmp_path: Path) -> None:
        """TorchX's runner passes app handles, and knows only one parent."""
        FsspecResultTracker(tmp_path)["local_cwd://torchx/train-1"] = {"loss": 0.5}
        run = current_run(
            {
                "TORCHX_TRACKER_BASE": str(tmp_path),
                "TORCHX_JOB_ID": "local_cwd://torchx/eval-1",
                "TORCHX_PARENT_RUN_ID": "local_cwd://torchx/train-1",
            }
        )
        assert run.parent.results() == {"loss": 0.5}
        run.put(x=1)
        assert run.results() == {"x": 1}
        with pytest.raises(NotRecordedError, match=says("'local_cwd://torchx/none'")):
            Run("local_cwd://torchx/none", FsspecResultTracker(tmp_path)).results()


def test_missing_results_say_what_to_do(base: str) -> None:
    with pytest.raises(NotRecordedError) as caught:
        stage(base, parents={"train": "p1/train/e9"}).parent.results()
    assert isinstance(caught.value, LookupError)
    assert str(caught.value) == (
        f"The execution 'p1/train/e9' has recorded no results under the tracker base {base!r}. Does that stage call "
        "current_run().put(...)? If its results were removed, run it again: a local run does so by itself; on KFP, "
        "submit it with --fresh STAGE."
    )


class TestInAProcess:
    def test_outside_of_a_stage_the_way_out_that_it_names_works(self, tmp_path: Path) -> None:
        code = "from torchx_kfp.tracking import current_run\ncurrent_run().put(x=1)"
        done = stages.application(code, {})
        assert done.returncode == 1
        assert (
            "torchx_kfp.errors.NotInStageError: This process was not started as a tracked stage: "
            "TORCHX_TRACKER_BASE and TORCHX_JOB_ID are not set. Run the application as a stage of a pipeline "
            "(Stages(tracker_base=...).task(app)), or set the variables"
        ) in done.stderr
        done = stages.application(code, {"TORCHX_TRACKER_BASE": str(tmp_path), "TORCHX_JOB_ID": "try/app/1"})
        assert (done.returncode, done.stderr) == (0, "")
        assert FsspecResultTracker(tmp_path)["try/app/1"] == {"x": 1}


@pytest.mark.parametrize(
    ("base", "run_id", "parents", "error", "facts"),
    [
        (
            None,
            None,
            None,
            NotInStageError,
            ["TORCHX_TRACKER_BASE and TORCHX_JOB_ID are not set"],
        ),
        ("/tmp/x", None, None, NotInStageError, ["TORCHX_JOB_ID is not set"]),
        (None, "a/b/c", None, NotInStageError, ["TORCHX_TRACKER_BASE is not set"]),
        ("", "a/b/c", None, NotInStageError, ["TORCHX_TRACKER_BASE is not set"]),
        ("nope://x", "a", None, TrackerError, ["cannot be used: Protocol not known: nope"]),
        ("S3://Bucket", "a", None, TrackerError, ["Protocol not known: S3", "Did you mean 's3://Bucket'?"]),
        ("here", "../x", None, TrackerError, ["TORCHX_JOB_ID is not an execution id", "'../x'", "tracker base"]),
        ("here", "a/b/c", "{", TrackerError, ["TORCHX_PARENT_RUN_IDS must be a JSON object", "Got: '{'."]),
    ],
)
def test_variables_that_are_missing_or_malformed(
    base: str | None, run_id: str | None, parents: str | None, error: type[Exception], facts: list[str], tmp_path: Path
) -> None:
    place = str(tmp_path) if base == "here" else base
    given = {"TORCHX_TRACKER_BASE": place, "TORCHX_JOB_ID": run_id, "TORCHX_PARENT_RUN_IDS": parents}
    with pytest.raises(error, match=says(*facts)):
        current_run({name: value for name, value in given.items() if value is not None})
    assert os.listdir(tmp_path) == []


def test_a_run_id_that_is_empty_is_said_when_it_is_read(tmp_path: Path) -> None:
    """A parameter of the pipeline may be empty, and the application may check for that."""
    run = stage(tmp_path, parents={"earlier": ""})
    assert run.parents["earlier"].id == ""
    with pytest.raises(NotRecordedError, match=says("empty", "stage", "reads=", "Pass")):
        run.parents["earlier"].results()


@pytest.mark.parametrize("where", ["local", "memory"])
def test_threads_of_a_process_lose_no_result(where: str, tmp_path: Path, memory_base: str) -> None:
    run = stage(tmp_path if where == "local" else memory_base)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: run.put({f"m{number}": number}), range(100)))
    assert len(run.results()) == 100


def test_processes_of_a_machine_lose_no_result_on_a_disk(tmp_path: Path) -> None:
    code = "from torchx_kfp.tracking import current_run\nfor n in range(25): current_run().put({f'{RANK}-{n}': n})"
    command = [[sys.executable, "-c", code.replace("RANK", str(rank))] for rank in range(4)]
    started = [subprocess.Popen(each, env={**os.environ, **stages.environ(tmp_path)}) for each in command]
    assert [process.wait(120) for process in started] == [0, 0, 0, 0]
    assert len(stages.stage(tmp_path).results()) == 100


def test_a_signal_handler_that_interrupts_a_put_loses_no_result(tmp_path: Path) -> None:
    """It waited forever for the lock of the put that it had interrupted."""
    code = """
import signal
from torchx_kfp.tracking import current_run
run = current_run()
handled = []
signal.signal(signal.SIGALRM, lambda *_: run.put({f"handler-{len(handled)}": handled.append(1) or 1}))
for number in range(100):
    signal.setitimer(signal.ITIMER_REAL, 0.0001 + number % 10 / 10_000)
    run.put({f"m{number}": number})
signal.setitimer(signal.ITIMER_REAL, 0)
print(len(handled), len(run.results()))
"""
    env = {**os.environ, **stages.environ(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
    handled, recorded = map(int, done.stdout.split())
    assert handled > 0
    assert recorded == 100 + handled


def test_a_process_that_is_forked_during_a_put_holds_no_lock(tmp_path: Path) -> None:
    """As workers of a data loader are: the next put waited until they had ended."""
    store = FsspecResultTracker(tmp_path).store
    with store.locked("p1/train/e1"):
        pid = os.fork()
        if not pid:
            time.sleep(300)
            os._exit(0)
    try:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(stage(tmp_path, "p1/train/e1").put, loss=0.5).result(120)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_a_process_that_is_forked_while_a_thread_records_can_record(tmp_path: Path) -> None:
    """It waited forever for a lock that a thread of the other process had."""
    code = """
import os, signal, threading
from torchx_kfp.tracking import current_run
from torchx_kfp.tracking.store import new_entry_name
run = current_run()
def names():
    while True:
        new_entry_name()
threading.Thread(target=names, daemon=True).start()
for _ in range(20):
    if not (pid := os.fork()):
        signal.alarm(60)
        run.add_metadata(pid=os.getpid())
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
"""
    env = {**os.environ, **stages.environ(tmp_path)}
    subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=120)


@pytest.mark.parametrize("metadata", [{"labels": {0: "cat", "0": "dog"}}, {3: 1}, {"a": [{True: 1}]}])
def test_a_name_is_text(metadata: Any, tmp_path: Path) -> None:
    """JSON would change it, and could lose another one."""
    with pytest.raises(RefusedError, match=says("key", "type", "str keys")):
        stage(tmp_path).add_metadata(metadata)
    with pytest.raises(RefusedError, match=says("key", "type", "str keys")):
        stage(tmp_path).add_artifact("model", "s3://b/m", all=metadata)
    assert stage(tmp_path).metadata() == {}


def test_large_arrays_are_files(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    run = stage(tmp_path)
    run.add_metadata(small=numpy.zeros((2, 2)), scalar=numpy.float32(0.5))
    assert run.metadata() == {"small": [[0.0, 0.0], [0.0, 0.0]], "scalar": 0.5}
    with pytest.raises(RefusedError, match=says("2,000,000 bytes", "numpy.ndarray", "artifact")):
        run.add_metadata(large=numpy.zeros(250_000))


@pytest.mark.parametrize(
    "call",
    [
        lambda run: run.put("loss", 1),
        lambda run: run.put({"accuracy": 1}, "loss"),
        lambda run: run.add_metadata("loss", 1),
        lambda run: run.log(1, "loss", 0.5),
        lambda run: run.put(None),
    ],
)
def test_a_value_without_a_name(call: Any, tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match=r"('loss'|None) of type \w+, which has no names. Give each value a"):
        call(stage(tmp_path))
    assert stage(tmp_path).results() == {}


@pytest.mark.parametrize(
    "line",
    [
        "current_run().put(x=[1, 2])",
        "current_run().add_artifact('model', 'missing.bin', store=True)",
        "current_run().add_metadata(x=print)",
        "current_run().log(1, loss='low')",
        "current_run().parent.results()",
        "current_run().parent.artifact('model')",
    ],
)
def test_the_last_lines_of_an_error_have_the_line_of_the_application(line: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"from torchx_kfp.tracking import current_run\n\n{line}\n")
    variables = stages.environ(tmp_path / "base", parents={"prepare": "p1/prepare/e1"})
    code = "import runpy; runpy.run_path('train.py')"
    said = stages.application(code, variables, cwd=tmp_path).stderr.splitlines()
    assert line in "\n".join(said[-8:])
    assert said[-1].startswith("torchx_kfp.errors.")


def test_a_run_is_read_by_its_id(tmp_path: Path) -> None:
    run = stage(tmp_path, "p1/train/e1")
    run.put(loss=0.5)
    run.log(1, loss=0.5)
    (tmp_path / "model").write_text("model")
    run.add_artifact("model", tmp_path / "model", store=True)
    found = open_run(tmp_path, "p1/train/e1")
    assert (found.results(), found.history()["loss"].count) == ({"loss": 0.5}, 1)
    with found.artifact("model").open() as file:
        assert file.read() == b"model"
    with pytest.raises(RefusedError, match=says("'p1/train/e1' is not that of this process", "current_run().put")):
        found.put(loss=0.4)
    with pytest.raises(UnknownNameError, match=says("its own parents", "sources() have the ids")):
        found.parents  # noqa: B018 (it raises)
    with pytest.raises(RefusedError, match=r"'\.\.'"):
        open_run(tmp_path, "../p1")


# Processes that an application starts elsewhere


def test_the_variables_of_a_run_make_it_the_run_of_another_process(base: str) -> None:
    parents = {"prepare": "p1/prepare/e1", "trials": ("p1/train/e1", "p1/train/e2")}
    first = stage(base, parents=parents)
    first.put(loss=0.5)
    environ = first.environ()
    again = current_run({**environ, "AWS_SECRET_ACCESS_KEY": "secret"})
    again.put(accuracy=0.9)
    assert (again.id, again.environ()) == (first.id, environ)
    assert first.results() == {"loss": 0.5, "accuracy": 0.9}
    assert [*again.parents] == ["prepare", "trials"]


def test_only_the_run_of_this_process_hands_on_variables(base: str) -> None:
    stage(base).put(loss=0.5)
    with pytest.raises(RefusedError, match=says("p1/eval/e1", "current_run().environ(...)")):
        open_run(base, "p1/eval/e1").environ()


TRAINS = """
import sys
from pathlib import Path
from kubeflow.trainer import CustomTrainer, TrainerClient
from kubeflow.trainer.backends.localprocess.types import LocalProcessBackendConfig
from torchx_kfp.tracking import current_run


def train():
    from torchx_kfp.tracking import current_run

    current_run().put(loss=0.25)


client = TrainerClient(LocalProcessBackendConfig())
runtime = client.get_runtime("torch-distributed")
runtime.trainer.framework = "none"  # its torch would have to be installed
search = {"PATH": sys.argv[1], "PYTHONPATH": sys.argv[2]}
job = client.train(runtime, trainer=CustomTrainer(func=train, env={**current_run().environ(), **search}))
client.wait_for_job_status(job, timeout=120, polling_interval=1)
"""


def test_a_trainjob_of_kubeflows_sdk_records_under_the_run_of_its_stage(tmp_path: Path) -> None:
    pytest.importorskip("kubeflow.trainer", reason="the group `dev` has Kubeflow's SDK")
    (tmp_path / "stage.py").write_text(TRAINS)
    base, run_id = tmp_path / "results", "p1/train/e1"
    environ = protocol.encode_context(protocol.StageContext(str(base), run_id))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    words = [sys.executable, str(tmp_path / "stage.py"), path, ":".join(filter(None, sys.path))]
    done = subprocess.run(words, env={**os.environ, **environ, "TMPDIR": str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert open_run(base, run_id).results() == {"loss": 0.25}

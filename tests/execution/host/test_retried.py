"""Runs that KFP retries: the new pod has the name of the failed one, and nobody sees what the failed one recorded."""

# Annotations are not postponed: kfp reads them as types.

import json
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from kfp import compiler, dsl

from tests.cases.apps import python
from tests.execution.host.calling import ended, get, wait_until
from tests.execution.host.commands import rows
from tests.facts import says
from tests.fake_kfp import KfpHost
from tests.fake_kfp.faults import Fault
from tests.programs import Program
from torchx_kfp import task_from_app
from torchx_kfp.contract.carried.cluster_stage import object_name
from torchx_kfp.host import attach, connect
from torchx_kfp.local import State, Watch, load_pipeline
from torchx_kfp.tracking import FsspecResultTracker

#: Fails unless the file has been made; records what the arguments say, before and after that.
TRAIN = """
import json, os, sys
from torchx_kfp.tracking import current_run
go, before, after = sys.argv[1:]
again = os.path.exists(go)
values = json.loads(after if again else before)
print("attempt", int(again) + 1)
run = current_run()
if values:
    run.put(values)
sys.exit(0 if again else 4)
"""
#: The same, but started again in one pod.
AGAIN = TRAIN.replace("os.path.exists(go)", "os.environ['TORCHX_JOB_ID'].endswith('_2')")
READ = """
import os
from torchx_kfp.tracking import FsspecResultTracker, current_run
current_run()
print("reads", FsspecResultTracker(os.environ["TORCHX_TRACKER_BASE"]).get(os.environ["TORCHX_PARENT_RUN_ID"]))
"""
STALE = {"stale": 1}
RUNS = "/apis/v2beta1/runs"


@dataclass
class Retried:
    """A user who has submitted a run that fails, and who names its tracker base."""

    host: KfpHost
    program: Program
    folder: Path

    @property
    def base(self) -> Path:
        return self.folder / "results"

    def submit(self, pipeline: Any) -> str:
        return connect(host=self.host.url).submit(load_pipeline(pipeline), {"base": str(self.base)})

    def fail(self, pipeline: Any) -> str:
        run_id = self.submit(pipeline)
        assert ended(self.host, run_id)["state"] == "FAILED"
        return run_id

    def retry(self, run_id: str) -> None:
        (self.folder / "go").touch()
        for file in (self.base / run_id / "train").iterdir():
            os.utime(file, times=(0, file.stat().st_mtime - 10))  # on a cluster, it takes half a minute or more
        done = self.program("retry", run_id)
        assert done.returncode == 0, done.stderr
        assert re.search(says(f"KFP retries {run_id}", f"/#/runs/details/{run_id}", f"watch {run_id}"), done.stderr)

    def shown(self, *words: str) -> str:
        """Return what a command shows, which is not what the failed attempt has recorded."""
        done = self.program(*words)
        assert done.returncode == 0, (words, done.stderr)
        assert "stale" not in done.stdout + done.stderr, (words, done)
        return done.stdout


@pytest.fixture
def retried(kfp_host: KfpHost, call: Program, tmp_path: Path) -> Retried:
    known = {"TORCHX_KFP_HOST": kfp_host.url, "TORCHX_KFP_TRACKER_BASE": str(tmp_path / "results")}
    return Retried(kfp_host, replace(call, variables=known), tmp_path)


def chain(folder: Path, after: Any, program: str = TRAIN, **fields: Any) -> Any:
    """Return a pipeline whose second stage fails at first, after it has recorded something."""

    @dsl.pipeline(name="chain")
    def chain(base: str):
        words = str(folder / "go"), json.dumps(STALE), json.dumps(after)
        first = task_from_app(python("first", "print('once')"), tracker_base=base)
        train = task_from_app(python("train", program, *words, **fields), tracker_base=base, reads={"first": first})
        task_from_app(python("read", READ), tracker_base=base, reads=train)

    return chain


def results_of(retried: Retried, run_id: str, *, code: int = 0) -> Any:
    """Return the results of the stage in the events of ``watch``."""
    done = retried.program("watch", run_id, "--json")
    assert done.returncode == code, done.stderr
    events = map(json.loads, done.stdout.splitlines())
    return [event["results"] for event in events if event["event"] == "stage_finished" and event["name"] == "train"][-1]


def test_a_retry_is_watched(retried: Retried) -> None:
    run_id = retried.fail(chain(retried.folder, {"w": 2.5}))
    run = attach(run_id, host=retried.host.url)
    assert run.wait(Watch()).state is State.FAILED
    said = retried.program("watch", run_id).stderr
    assert re.search(says(f"torchx-kfp retry {run_id}\n", "Submit it again to continue", "KFP's cache"), said), said
    result = run.retry().wait(Watch(), timeout=120)
    assert (result.state, result["train"].state) == (State.FAILED, State.FAILED), "nothing has changed"
    (retried.folder / "go").touch()
    done = retried.program("retry", run_id, "--watch")
    assert done.returncode == 0, done.stderr
    assert [row[:2] for row in rows(done.stdout)] == [[name, "succeeded"] for name in ("first", "train", "read")]


def test_a_retry_is_shown_as_its_options_say(retried: Retried) -> None:
    run_id = retried.fail(chain(retried.folder, {"w": 2.5}))
    done = retried.program("retry", run_id, "--json")
    link = f"{retried.host.url}/#/runs/details/{run_id}"
    assert (json.loads(done.stdout), done.stderr) == ({"run": run_id, "link": link}, "")
    ended(retried.host, run_id)
    quiet = retried.program("retry", run_id, "-q")
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")
    ended(retried.host, run_id)
    (retried.folder / "go").touch()
    watched = retried.program("retry", run_id, "--watch", "--json")
    assert watched.returncode == 0, watched.stderr
    assert json.loads(watched.stdout.splitlines()[-1])["state"] == "succeeded"


def test_a_run_that_cannot_be_retried_says_why(retried: Retried) -> None:
    @dsl.pipeline(name="long")
    def long(base: str):
        task_from_app(python("sleep", "import time; time.sleep(300)"), tracker_base=base)

    def refused(run: str, code: int, *facts: str) -> None:
        done = retried.program("retry", run)
        assert (done.returncode, done.stdout) == (code, "")
        assert re.search(says(*facts), done.stderr)
        assert "Traceback" not in done.stderr

    canceled = retried.submit(long)
    wait_until(lambda: get(retried.host, f"{RUNS}/{canceled}")["state"] == "RUNNING")
    refused(canceled, 2, f"the run {canceled} is running", "torchx-kfp cancel")
    refused("latest", 2, "another user's", f"retry {canceled}")
    assert retried.program("cancel", canceled).returncode == 0
    retried.host.runs[canceled].manifest_is_gone = True
    refused(canceled, 2, "Workflow manifest cannot be empty")
    retried.host.runs[canceled].manifest_is_gone = False
    retried.program("retry", canceled)
    wait_until(lambda: get(retried.host, f"{RUNS}/{canceled}")["state"] == "RUNNING")
    retried.host.delete(canceled)
    refused(canceled, 2, f"no run {canceled!r}", "not found")
    (retried.folder / "go").touch()
    succeeded = retried.submit(chain(retried.folder, {}))
    ended(retried.host, succeeded)
    refused(succeeded, 2, f"the run {succeeded} is succeeded", "only retries failed runs")


def test_a_run_on_this_machine_is_run_again(retried: Retried) -> None:
    # What is under the tracker base is not code of the stages.
    compiler.Compiler().compile(chain(retried.base, {"w": 2.5}), str(retried.folder / "chain.yaml"))
    failed = retried.program("run", "chain.yaml", "-p", f"base={retried.base}")
    assert failed.returncode == 1, failed.stderr
    (retried.base / "go").touch()
    done = retried.program("retry", "latest", "--output-dir", "local_outputs", TORCHX_KFP_HOST="")
    assert done.returncode == 0, done.stderr
    assert [row[:2] for row in rows(done.stdout)] == [
        ["first", "cached"],
        ["train", "succeeded"],
        ["read", "succeeded"],
    ]
    refused = retried.program("retry", "latest", "--output-dir", "local_outputs", TORCHX_KFP_HOST="")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert re.search(says("has succeeded", "run chain.yaml -p"), refused.stderr)


def test_nobody_sees_what_the_failed_attempt_has_recorded(retried: Retried) -> None:
    run_id = retried.fail(chain(retried.folder, {"w": 2.5}))
    assert results_of(retried, run_id, code=1) == STALE, "nothing has followed yet"
    retried.retry(run_id)
    assert results_of(retried, run_id) == {"w": 2.5}, "it is watched until it has ended again"
    assert retried.shown("logs", f"{run_id}/read") == "reads {'w': 2.5}\n"
    tracker = FsspecResultTracker(retried.base)
    other = retried.submit(chain(retried.folder, {"w": 1.5}))  # the file is there
    ended(retried.host, other)
    for words in (["results", run_id], ["show", f"{run_id}/train"], ["compare", run_id, other]):
        assert "2.5" in retried.shown(*words), words
    [kept] = [key for key in tracker.keys(run_id) if "w" in tracker.get(key)]
    assert kept in retried.shown("show", "--lineage", f"{run_id}/read")
    retried.shown("report", run_id, "-o", "report.html")
    report = (retried.folder / "report.html").read_text()
    assert "2.5" in report
    assert f"{retried.host.url}/#/runs/details/{run_id}" in report
    assert "stale" not in report


#: Fails in its first attempt, after it has recorded something. As with a lost pod, the next one has another name.
LOST = """
import json, os, sys
from torchx_kfp.tracking import current_run
go, before, after = sys.argv[1:]
is_first = not os.path.exists(go)
open(go, "w").close()
if values := json.loads(before if is_first else after):
    current_run().put(values)
sys.exit(is_first)
"""


def test_what_an_attempt_in_another_pod_has_recorded_is_left_out(retried: Retried) -> None:
    @dsl.pipeline(name="lost")
    def lost(base: str):
        words = str(retried.folder / "lost"), json.dumps(STALE), json.dumps({"w": 2.5})
        task = task_from_app(python("train", LOST, *words), tracker_base=base).set_caching_options(False)
        task.set_retry(1, backoff_duration="0s")

    run_id = retried.submit(lost)
    assert ended(retried.host, run_id)["state"] == "SUCCEEDED"
    assert len(FsspecResultTracker(retried.base).keys(run_id)) == 2
    assert results_of(retried, run_id) == {"w": 2.5}
    other = retried.submit(lost)  # the file is there
    ended(retried.host, other)
    for words in (["results", run_id], ["results", run_id, "--json"], ["compare", run_id, other]):
        done = retried.program(*words)
        assert "2.5" in done.stdout, done
        assert "stale" not in done.stdout, done
        assert "Left out, from earlier attempts: " in done.stderr, done


def test_a_launcher_that_follows_the_replicas_of_a_lost_one_has_its_results(retried: Retried) -> None:
    """The replicas go on with the run id of the attempt that made them, and the later attempt records nothing."""

    @dsl.pipeline(name="adopted")
    def adopted(base: str):
        words = str(retried.folder / "lost"), json.dumps({"w": 2.5}), "{}"
        app = python("train", LOST, *words)
        task_from_app(app, tracker_base=base, engine="job").set_retry(1, backoff_duration="0s")

    run_id = retried.submit(adopted)
    assert ended(retried.host, run_id)["state"] == "SUCCEEDED"
    [key] = FsspecResultTracker(retried.base).keys(run_id)
    assert results_of(retried, run_id) == {"w": 2.5}
    events = map(json.loads, retried.program("watch", run_id, "--json").stdout.splitlines())
    assert [event["execution_id"] for event in events if event["event"] == "stage_finished"] == [key]
    for words in (["results", run_id], ["show", f"{run_id}/train"]):
        assert "2.5" in retried.program(*words).stdout
    # A stage of one pod has no replicas that could go on.
    plain = retried.submit(without_engine(retried.folder))
    assert ended(retried.host, plain)["state"] == "SUCCEEDED"
    assert results_of(retried, plain) == {}


def without_engine(folder: Path) -> Any:
    @dsl.pipeline(name="plain")
    def plain(base: str):
        words = str(folder / "plain"), json.dumps(STALE), "{}"
        task_from_app(python("train", LOST, *words), tracker_base=base).set_retry(1, backoff_duration="0s")

    return plain


def test_an_attempt_that_records_nothing_hides_those_before_it(retried: Retried) -> None:
    """Both when KFP retries the run, and when the stage starts its application again."""
    run_id = retried.fail(chain(retried.folder, {}))
    retried.retry(run_id)
    assert ended(retried.host, run_id)["state"] == "SUCCEEDED"
    again = retried.submit(chain(retried.folder, {}, max_retries=2, program=AGAIN))
    assert ended(retried.host, again)["state"] == "SUCCEEDED"
    for one in (run_id, again):
        assert results_of(retried, one) == {}
        assert retried.shown("logs", f"{one}/read") == "reads {}\n"
        for words in (["show", f"{one}/train"], ["show", "--lineage", one]):
            retried.shown(*words)
        done = retried.program("results", one)
        assert (done.returncode, done.stdout) == (1, "")
        assert re.search(says(one, "last attempts", "recorded nothing"), done.stderr)
        retried.shown("report", one, "-o", "report.html")
        report = (retried.folder / "report.html").read_text()
        assert "stale" not in report
        assert ("starts in the pod" in report) is (one == again)
    retried.shown("compare", run_id, again)
    events = map(json.loads, retried.shown("watch", again, "--json").splitlines())
    [train] = [event for event in events if (event["event"], event.get("name")) == ("stage_finished", "train")]
    assert (train["attempts"], train["pods"]) == (2, 1), "the table says the same"
    assert train["execution_id"].endswith("_2"), "it has recorded its start"


def test_replicas_that_may_go_on_after_a_cancel_are_named(retried: Retried) -> None:
    @dsl.pipeline(name="long")
    def long(base: str):
        app = python("train", "import time; print('begun', flush=True); time.sleep(300)", num_replicas=2)
        task_from_app(app, tracker_base=base, engine="job")
        task_from_app(python("plain", "import time; time.sleep(300)"), tracker_base=base)
        task_from_app(python("done", "", num_replicas=2), tracker_base=base, engine="job")

    run_id = retried.submit(long)
    run = attach(run_id, host=retried.host.url)
    states = {"train": State.RUNNING, "plain": State.RUNNING, "done": State.SUCCEEDED}
    wait_until(lambda: {stage.name: stage.state for stage in run.read().run.stages} == states)
    assert run.left_replicas() == []
    done = retried.program("cancel", run_id)
    assert done.returncode == 0, done.stderr
    said = re.search(r"Replicas of train may still run\. To end them: (.*)", done.stderr)
    assert said is not None, done.stderr
    assert re.fullmatch(r"kubectl delete jobs\.batch train-[0-9a-f]{10} -n kubeflow", said[1])
    assert done.stderr.count(" may still run.") == 1, "the other stages have no replicas, or these have ended"
    run.wait(Watch())
    assert run.left_replicas() == [said[0]]
    assert said[0] in retried.program("watch", run_id, "-q").stderr
    # The launcher was quick enough, or somebody was quicker.
    for end in ("is deleted", "does not exist"):
        log = f"begun\ntorchx-kfp: ended by signal 15; {said[1].split()[3]} {end}\n"
        retried.host.add(Fault(200, path="/log$", body=log))
        assert run.left_replicas() == []


def test_the_name_of_replicas_is_that_of_a_cluster() -> None:
    """Seen on KFP 2.17: the second attempt follows the object of the first one."""
    for attempt in (0, 1):
        node = f"l5-adopt-mkrpz(0).root(0).adopt-job(0).executor({attempt})"
        name = object_name("adopt-job", "a421a9f6-0ac9-4ee2-ad04-827ef784f1d0", node)
        assert name == "adopt-job-bfdc380444"

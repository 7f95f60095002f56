"""A stage of which launchers, replicas and requests fail as a schedule says, and what must hold whatever dies when."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from torchx.specs import AppDef, RetryPolicy, Role

from tests.kubernetes.api import Object
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.faults import Fault, FaultyServer, Request
from tests.kubernetes.history import Event, History
from tests.kubernetes.kubelet import Kubelet
from tests.kubernetes.stages import COLLECTIONS, Stage
from tests.kubernetes.waiting import until
from torchx_kfp.tracking import FsspecResultTracker

#: A shell's program, since many are started. Each replica counts its starts, and fails in as many as it is told.
#: Replica 0 records the number of its start: one file below the tracker base.
PROGRAM = """
cd "$1"
n=0
while ! mkdir "$TORCHX_REPLICA_ID-$n" 2>/dev/null; do n=$((n + 1)); done
echo "$TORCHX_JOB_ID" >"$TORCHX_REPLICA_ID-$n/run_id"
echo "start $n of replica $TORCHX_REPLICA_ID"
if [ "$TORCHX_REPLICA_ID" = 0 ]; then
    printf '{"loss": %s}' "$n" >"0-$n/result"
    mkdir -p "$TORCHX_TRACKER_BASE/${TORCHX_JOB_ID%/*}"
    mv "0-$n/result" "$TORCHX_TRACKER_BASE/$TORCHX_JOB_ID"
    failing=$3
else
    failing=$4
fi
sleep "$2"
[ "$n" -ge "$failing" ] || { touch "$TORCHX_REPLICA_ID-$n/failed"; exit 7; }
"""
#: Seconds in which everything of a stage is gone after its end.
SOON = 30
#: Seconds in which a launcher has ended.
LONG = 120


@dataclass(frozen=True)
class Blow:
    """A fault of a launcher at one of its requests, before the API server gets it, or after it has handled it.

    Its processes are killed, or get SIGTERM, or its node is cut off from the API server, so that the next attempt
    starts beside it. When a node is back, its launcher gets SIGTERM.
    """

    request: int
    when: Literal["before", "after"]
    what: Literal["kill", "term", "cut off"]


@dataclass(frozen=True)
class Life:
    """One attempt: faults of its first requests, what befalls it, and whether its pod is deleted afterwards."""

    faults: Sequence[Fault] = ()
    blows: Sequence[Blow] = ()
    with_node: bool = False


@dataclass(frozen=True)
class Schedule:
    """The course of a stage of two replicas.

    Attributes:
        engine: its engine.
        restarts: how often the engine starts replicas again.
        failing: how many starts of each replica fail.
        seconds: how long a replica runs.
        back: the request of the next launcher at which one that was cut off is back.
        lives: its attempts, until one succeeds.
    """

    engine: str
    restarts: int
    failing: tuple[int, int]
    seconds: float
    back: int
    lives: Sequence[Life]


class Launcher:
    """An attempt that goes as its life says."""

    def __init__(self, cluster: ControlPlane, trial: Trial, life: Life) -> None:
        stage = trial.stage
        self.name = f"workflow-{stage.component}-{stage.attempts}"
        self.cut_off = threading.Event()
        self.blows: set[str] = set()
        #: When it got its first SIGTERM.
        self.terminated = 0.0
        self._life = life
        self._trial = trial
        self._earlier = tuple(trial.launchers)
        self._kubelet = stage.kubelet
        self._back = threading.Event()
        self.server = FaultyServer(cluster, life.faults)
        self.server.before = lambda request: self._at("before", request)
        self.server.after = lambda request: self._at("after", request)
        stage.environ["KUBERNETES_SERVICE_PORT"] = self.server.url.rpartition(":")[2]
        self.attempt = stage.start(node=f"w-{stage.component}(0).train(0).executor({{}})")

    def end(self) -> None:
        """End what is left of it, whatever has gone wrong."""
        self._back.set()
        with suppress(StopIteration):
            self._kubelet.kill(self.name)
        self.server.__exit__()

    @property
    def code(self) -> int | None:
        """Its exit code, once it has ended."""
        status = self._trial.history.last(self.name).get("status", {})
        state = (status.get("containerStatuses") or [{"state": {}}])[0]["state"]
        return int(state["terminated"]["exitCode"]) if "terminated" in state else None

    def come_back(self) -> None:
        """Let its node be back, if it was cut off."""
        if self.cut_off.is_set() and not self._back.is_set():
            self._terminate()
            self._back.set()

    @property
    def deletes(self) -> list[Request]:
        """Its requests for a deletion after SIGTERM."""
        sent = [each for each in self.server.requests if each.method == "DELETE"]
        return [each for each in sent if each.arrived >= self.terminated > 0]

    @property
    def saw(self) -> bool:
        """Whether it saw its object before SIGTERM: it had asked something else since it got the object."""
        before = [each for each in self.server.requests if each.arrived <= self.terminated]
        objects = [each for each in before[:-1] if each.path.startswith(self._trial.collection)]
        return any(each.status in (200, 201) and each.whole for each in objects)

    def _at(self, when: str, request: Request) -> None:
        if (when, request.number) == ("before", self._trial.schedule.back):
            for each in self._earlier:
                each.come_back()
        if self.cut_off.is_set():
            self._back.wait(LONG)
        for blow in self._life.blows:
            if (blow.request, blow.when) == (request.number, when):
                self.blows.add(blow.what)
                if blow.what == "term":
                    self._terminate()
                elif blow.what == "cut off":
                    self.cut_off.set()
                    self._back.wait(LONG)
                else:
                    self._kubelet.kill(self.name)
                    if when == "before":
                        request.fault = "cut"

    def _terminate(self) -> None:
        # A request's time is taken before that of a SIGTERM that it causes.
        self.terminated = self.terminated or time.monotonic()
        self._kubelet.terminate(self.name)


@dataclass
class Trial:
    """A stage, the schedule that it goes through, and its launchers until now."""

    schedule: Schedule
    stage: Stage
    history: History
    launchers: list[Launcher] = field(default_factory=list)

    @property
    def collection(self) -> str:
        """The path of the engine's objects."""
        return self.stage.namespace.path(COLLECTIONS[self.schedule.engine])

    @property
    def prefix(self) -> str:
        """How the names of the stage's object, and of all that it owns, begin."""
        return f"{self.stage.component}-"

    @property
    def events(self) -> list[Event]:
        """All that happened to its objects and their pods."""
        return self.history.events(self.prefix)

    @property
    def objects(self) -> dict[str, list[Event]]:
        """The events of each object that was ever made."""
        found: dict[str, list[Event]] = {}
        for event in self.events:
            if event.collection == COLLECTIONS[self.schedule.engine]:
                found.setdefault(event.uid, []).append(event)
        return found

    @property
    def log(self) -> str:
        """The launchers' requests and output."""
        begun = min((one.arrived for each in self.launchers for one in each.server.requests), default=0)
        return "".join(
            f"{each.name} {one.arrived - begun:.1f} s: {one}, fault {one.fault}, answer {one.handled}\n"
            for each in self.launchers
            for one in each.server.requests
        ) + "".join(f"{each.name} has ended with {each.code}:\n{each.attempt.log}" for each in self.launchers)


def prepare(kubelet: Kubelet, history: History, folder: Path, name: str, schedule: Schedule) -> Trial:
    """Return a stage whose replicas fail as the schedule says."""
    arguments = ["-c", PROGRAM, "sh", str(folder), str(schedule.seconds), *map(str, schedule.failing)]
    policy = RetryPolicy.REPLICA if schedule.engine == "job" else RetryPolicy.APPLICATION
    role = Role("trainer", image="any", entrypoint="sh", args=arguments, num_replicas=2)
    role.max_retries, role.retry_policy = schedule.restarts, policy
    app = AppDef("train", [role])
    stage = Stage(kubelet.namespace, kubelet, folder, app, name=name, engine=schedule.engine, results={"loss": float})
    stage.account = f"{schedule.engine}-launcher"
    return Trial(schedule, stage, history)


def run(trial: Trial, cluster: ControlPlane) -> None:
    """Start one launcher after the other until one succeeds."""
    namespace = trial.stage.namespace
    with ExitStack() as stack:
        for life in trial.schedule.lives:
            launcher = Launcher(cluster, trial, life)
            stack.callback(launcher.end)
            trial.launchers.append(launcher)
            until(lambda each=launcher: each.cut_off.is_set() or each.code is not None, LONG)
            if launcher.cut_off.is_set():
                continue
            if life.with_node:
                namespace.api.delete(namespace.path("pods", launcher.name), gracePeriodSeconds=0)
            if launcher.code == 0:
                break
        for each in trial.launchers:
            each.come_back()
            until(lambda each=each: each.code is not None, LONG)


def check(trial: Trial) -> None:
    """Assert what holds whatever dies when."""
    last = trial.launchers[-1]
    if last.code in (1, 7) or (last.code == 143 and last.saw and "is not deleted" not in last.attempt.log):
        # The service of a Job belongs to the run.
        wait_until_nothing_is_left(trial, but="services" if trial.schedule.engine == "job" else "")
    catch_up(trial)
    check_codes(trial)
    check_times(trial)
    check_deletions(trial)
    check_runs(trial)
    if last.code == 0:
        check_result(trial, last)
    else:
        assert "loss" not in last.attempt.outputs


def catch_up(trial: Trial) -> None:
    """Wait until all that has happened is known."""
    for collection in (COLLECTIONS[trial.schedule.engine], "pods"):
        # A change whose version is told: once it is seen, all that happened before it has been seen.
        path = trial.stage.namespace.path(collection, "decoy")
        touched = trial.stage.namespace.api.patch(path, {"metadata": {"annotations": {"seen-by": trial.prefix}}})
        trial.history.wait_for(collection, int(touched["metadata"]["resourceVersion"]))


def wait_until_nothing_is_left(trial: Trial, but: str = "") -> None:
    """Wait until there are no objects of the stage, but for those of a collection."""

    def left() -> list[Event]:
        return [each for each in trial.history.left(trial.prefix) if each.collection != but]

    until(lambda: not left(), SOON)
    catch_up(trial)
    assert not left()


def check_codes(trial: Trial) -> None:
    """A launcher ends with what has befallen it, or with what its object came to."""
    for each in trial.launchers:
        befallen = {137: "kill" in each.blows, 143: each.terminated > 0, 1: each.cut_off.is_set()}
        if befallen.get(each.code or 0):
            continue
        followed = [
            one.object for events in trial.objects.values() for one in events if _follower(one.object) == each.name
        ]
        # 1, if the engine had removed the pod that failed before the launcher saw it.
        assert each.code in (0, 7, 1)
        assert ("failed" if each.code else "succeeded") in map(state_of, followed)


def check_times(trial: Trial) -> None:
    """There is one object at any time, and one pod of each replica; those of an object are gone before the next one."""
    objects: set[str] = set()
    pods: dict[str, str] = {}
    for event in trial.events:
        if event.collection == "pods":
            phase = event.object["status"]["phase"]
            if event.type == "DELETED" or phase in ("Succeeded", "Failed"):
                pods.pop(event.uid, None)
            else:
                pods[event.uid] = _index(event.object)
            assert len(set(pods.values())) == len(pods), "a replica runs once at a time"
        elif event.collection == COLLECTIONS[trial.schedule.engine]:
            if event.type == "DELETED":
                objects.remove(event.uid)
            elif event.uid not in objects:
                objects.add(event.uid)
                assert not pods, "pods of an earlier object run"
            assert len(objects) <= 1, "there is one object at any time"


def check_deletions(trial: Trial) -> None:
    """An object is deleted because it has failed, or after SIGTERM: by the attempt that follows it, or a later one."""
    names = [each.name for each in trial.launchers]
    deleters = {each.name for each in trial.launchers if any(one.handled == 200 for one in each.deletes)}
    for events in trial.objects.values():
        deletion = deletion_of(events)
        if deletion and state_of(deletion.object) != "failed":
            entitled = names[names.index(_follower(deletion.object)) :]
            assert deleters & {*entitled}, "an object that has not failed is deleted"


def check_runs(trial: Trial) -> None:
    """Each object is a run of its own, and runs each replica once, unless its engine restarts it."""
    runs: dict[str, set[str]] = {_run_id(events[0].object): set() for events in trial.objects.values()}
    assert len(runs) == len(trial.objects)
    endings = {_run_id(events[0].object): deletion_of(events) for events in trial.objects.values()}
    for event in trial.events:
        if event.collection == "pods" and event.type == "ADDED":
            run_id = _run_id_of_pod(event.object)
            ending = endings[run_id]
            # Controllers may replace pods of an object before they know that it is deleted.
            if not ending or event.version < ending.version:
                runs[run_id].add(event.uid)
    for events in trial.objects.values():
        pods = runs[_run_id(events[0].object)]
        assert len(pods) <= 2 * (1 + trial.schedule.restarts)
        assert len(pods) >= 2 or state_of(events[-1].object) != "succeeded"


def deletion_of(events: Sequence[Event]) -> Event | None:
    """Return the event with which the deletion of an object began."""
    return next((each for each in events if each.type == "DELETED" or _is_ending(each.object)), None)


def check_result(trial: Trial, launcher: Launcher) -> None:
    """The published results are those of the last start of replica 0, in the object that succeeded."""
    run_id = launcher.attempt.run_id
    (made,) = [events[-1].object for events in trial.objects.values() if _run_id(events[-1].object) == run_id]
    assert state_of(made) == "succeeded"
    starts = {int(file.parent.name[2:]): file.parent for file in trial.stage.folder.glob("0-*/run_id")}
    number = max(number for number, start in starts.items() if (start / "run_id").read_text().strip() == run_id)
    assert not (starts[number] / "failed").exists()
    assert FsspecResultTracker(str(trial.stage.base))[run_id] == {"loss": number}, "a result is lost"
    assert float(launcher.attempt.outputs["loss"]) == number


def end(trial: Trial) -> None:
    """Delete the stage's workflow: nothing of it is left."""
    namespace = trial.stage.namespace
    namespace.api.delete(namespace.path("argoproj.io/v1alpha1/workflows", trial.stage.workflow))
    wait_until_nothing_is_left(trial)


def state_of(found: Object) -> str:
    """Return ``succeeded``, ``failed`` or an empty text."""
    status = found.get("status", {})
    states = [each["type"] for each in status.get("conditions", ()) if each["status"] == "True" and "type" in each]
    if {"Complete", "Completed"} & {*states}:
        return "succeeded"
    return "failed" if "Failed" in states else ""


def _is_ending(found: Object) -> bool:
    return "deletionTimestamp" in found["metadata"]


def _follower(found: Object) -> str:
    return str(found["metadata"]["annotations"]["torchx-kfp/launcher"]).partition("_")[0]


def _index(pod: Object) -> str:
    return str(pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"])


def _run_id(found: Object) -> str:
    return str(found["metadata"]["annotations"]["torchx-kfp/run-id"])


def _run_id_of_pod(pod: Object) -> str:
    return next(each["value"] for each in pod["spec"]["containers"][0]["env"] if each["name"] == "TORCHX_JOB_ID")

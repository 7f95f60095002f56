"""The carried launcher against a control plane's answers: what it asks, says and shows, and how it ends.

`tests.recordings` has whole recordings. The courses are a stage's objects in the same form, with other states.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.authoring.engines.filled import launched
from tests.contract.carried.recorded import Attempt, Look, Pod, course, ended, insert, start, waits
from tests.kubernetes.certificates import Authority
from tests.kubernetes.record_launcher import WORK, app_of
from tests.oldest import needs_oldest, oldest_python
from tests.recordings import NAMES, Recording, read
from torchx_kfp import engines

# Recordings


#: Only Jobs have companions, which the launcher makes before them.
WITH_OLDEST = [name for name in NAMES if name.startswith("jobset.") or name == "job.succeeds"]


@pytest.mark.parametrize(
    ("name", "python"),
    [
        *((name, "this") for name in NAMES),
        *(pytest.param(name, "oldest", marks=needs_oldest) for name in WITH_OLDEST),
    ],
)
def test_the_launcher_does_what_was_recorded(name: str, python: str, tmp_path: Path) -> None:
    recording = read(name)
    expected = [one.request for one in recording.exchanges if not one.is_log]
    interpreter = oldest_python() or "" if python == "oldest" else sys.executable
    with start(recording, tmp_path, python=interpreter) as attempt:
        replay = attempt.replay
        if name.endswith("terminated"):
            # Repeated looks find nothing new, until the signal comes.
            # The first one tells that all answers have arrived.
            attempt.wait_for(
                lambda: replay.requests == expected[:-1] and replay.repeated and attempt.shown == recording.shown
            )
            attempt.process.send_signal(signal.SIGTERM)
        assert attempt.ends() == recording.code
    assert replay.requests == expected
    assert all(name.endswith("terminated") and request.startswith("GET ") for request in replay.repeated)
    assert (attempt.said, attempt.shown, attempt.run_id) == (recording.said, recording.shown, recording.run_id)


@pytest.mark.versions
@pytest.mark.parametrize("name", NAMES)
def test_stages_are_still_given_what_was_recorded(name: str) -> None:
    """If this fails, record them again: `tests.recordings` says how."""
    engine, case = name.split(".")
    recording = read(name)
    found = launched(app_of(case, WORK / engine / case / "go"), engines.ENGINES[engine](), tracked=True)
    assert (found.words, found.spec) == (recording.words, recording.spec)


def test_the_api_server_is_asked_less_often_after_the_first_minute(tmp_path: Path) -> None:
    """A training takes days, and a cluster has many of them."""
    with start(read("job.terminated"), tmp_path, speed=2000, end=240) as attempt:
        assert attempt.ends() == 143, attempt.log
    looks = sum("/jobs/" in request for request in attempt.replay.repeated)
    # Twice a second in the first minute, and each 2 to 5 s in the next three.
    assert 180 / 5 < looks < 60 / 0.5 + 180 / 2


# Courses


def conditions(**states: str) -> dict[str, Any]:
    found = [{"type": name, "status": status, "message": f"about {name}"} for name, status in states.items()]
    return {"conditions": found}


@dataclass(frozen=True)
class Course:
    """What is found at each look, and how the stage ends; nothing of ``never`` is in its log."""

    looks: Sequence[Look]
    code: int = 0
    says: Sequence[str] = ()
    never: Sequence[str] = ()
    engine: str = "job"
    spec: Mapping[str, Any] = field(default_factory=dict)


BOTH = [Pod(0), Pod(1)]
DONE = Look([ended(0, 0), ended(1, 0)], conditions(SuccessCriteriaMet="True", Complete="True"))
FAILED = conditions(FailureTarget="True", Failed="True")
STATES: list[dict[str, Any]] = [{}, {"conditions": None}, conditions(Suspended="True", SuccessCriteriaMet="True")]
OTHERS = conditions(FailureTarget="False", Suspended="True")["conditions"]
LATER = {"metadata": {"deletionTimestamp": "t"}}
#: Pods that wait, or whom the scheduler has found no node.
UNSCHEDULED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node has a GPU"}
PENDING = Pod(0, {}, {"phase": "Pending", "conditions": [UNSCHEDULED]})
PULLS = [waits(0, "ErrImagePull", "no such image"), waits(0, "ImagePullBackOff", "back-off")]
DISRUPTED = {"type": "DisruptionTarget", "reason": "DeletionByPodGC", "message": "PodGC: node no longer exists"}
AGAIN = {"metadata": {"name": "pod-1-again", "creationTimestamp": "2025-01-02T00:00:00Z"}}
#: Of a queue, after the first pods and before those of ``AGAIN``.
RESUMED = {"conditions": [{"type": "Suspended", "status": "False", "lastTransitionTime": "2025-01-01T12:00:00Z"}]}
FIRST_AGAIN = {"metadata": {**AGAIN["metadata"], "name": "pod-0-again"}}


def first(*pods: Pod, last: Sequence[Pod] = (), status: Any = FAILED, **changed: Any) -> Sequence[Look]:
    """Return the looks at a stage that fails: these pods, and then also the last ones."""
    return [Look(), Look(pods or BOTH), Look([*pods, *last], status, **changed)]


COURSES: Mapping[str, Course] = {
    "states of a Job that do not end it": Course(
        [*(Look(BOTH, status) for status in (*STATES, conditions(Complete="False", FailureTarget="True"))), DONE],
        says=["2 of 2 replicas run", "all 2 replicas succeeded", "train-b5b828bd2d succeeded"],
    ),
    "states of a JobSet that do not end it": Course(
        [
            *(Look(BOTH, status) for status in ({}, conditions(Completed="False"), {"terminalState": ""})),
            Look([], conditions(Completed="True")),
        ],
        engine="jobset",
        says=["0 of 2 replicas run", "train-b5b828bd2d succeeded"],
    ),
    "the reason of a failed Job": Course(first(ended(0, 7)), 7, ["train-b5b828bd2d failed: about FailureTarget\n"]),
    "conditions that are not the reason": Course(
        first(ended(0, 7), status={"conditions": [{"type": "Failed", "status": "True"}, *OTHERS]}),
        7,
        ["train-b5b828bd2d failed\n"],
    ),
    "an object that fails without a replica": Course(
        [Look(BOTH), Look(BOTH, FAILED)], 1, ["train-b5b828bd2d failed: about FailureTarget"]
    ),
    "the others are ended after the first failure": Course(
        first(ended(1, 7), last=[ended(0, 143, 2, **LATER)]),
        7,
        ["trainer/1 (pod pod-1, node node-1) failed first"],
    ),
    "the others are ended in the second of the first failure": Course(
        first(last=[ended(0, 143, **LATER), ended(1, 7)]), 7, ["trainer/1 (pod pod-1"]
    ),
    "a replica that somebody evicts fails first": Course(
        first(last=[ended(0, 143, **LATER), ended(1, 7, 2)]), 143, ["trainer/0 (pod pod-0"]
    ),
    "a replica that fails before it is deleted": Course(
        [
            Look(BOTH),
            Look([ended(0, 7), ended(1, 143, **LATER)]),
            Look([ended(0, 7, **LATER), ended(1, 143, **LATER)], FAILED),
        ],
        7,
        ["trainer/0 failed with exit code 7", "trainer/0 (pod pod-0"],
    ),
    "a pod that is lost is missed later than the others are ended": Course(
        [Look(BOTH), Look([ended(0, 143, **LATER)], FAILED)],
        1,
        ["trainer/1: its pod pod-1 is gone", "trainer/1 (pod pod-1, node node-1) is gone"],
    ),
    "a failure beside a pod that is lost": Course(
        [Look([*BOTH, Pod(2)]), Look([ended(0, 7), ended(1, 143, **LATER)], FAILED)],
        7,
        ["trainer/2: its pod pod-2 is gone", "trainer/0 (pod pod-0"],
    ),
    "a replica that its engine starts again counts with its last failure": Course(
        [
            Look(BOTH),
            Look([Pod(0), ended(1, 3)]),
            Look([Pod(0), Pod(1, **AGAIN)]),
            Look([ended(0, 4, 3), Pod(1, **AGAIN)], FAILED),
        ],
        4,
        ["trainer/1 failed with exit code 3; it was the pod pod-1", "trainer/0 (pod pod-0, node node-1) failed first"],
    ),
    "a replica that is lost with its node": Course(
        first(last=[Pod(0), Pod(1, {}, {"phase": "Failed", "conditions": [DISRUPTED]})]),
        1,
        ["trainer/1 failed with exit code 1 (DeletionByPodGC: PodGC: node no longer exists); it was the pod pod-1"],
    ),
    "a replica that its node evicts": Course(
        first(last=[Pod(1, {}, {"phase": "Failed", "reason": "Evicted", "message": "low on memory "})]),
        1,
        ["trainer/1 failed with exit code 1 (Evicted: low on memory); it was the pod pod-1"],
    ),
    "a node that fails is not the failure of an application that may fail": Course(
        first(last=[Pod(1, {}, {"phase": "Failed", "reason": "Evicted", "message": "low on memory "})]),
        99,
        ["trainer/1 failed with exit code 1 (Evicted: low on memory)"],
        spec={"failure": 99},
    ),
    "nor is a pod that is gone": Course(
        [Look(BOTH), Look([ended(0, 143, **LATER)], FAILED)],
        99,
        ["trainer/1 (pod pod-1, node node-1) is gone"],
        spec={"failure": 99},
    ),
    "but one that the kernel kills is": Course(first(ended(0, 137, reason="OOMKilled")), 137, spec={"failure": 99}),
    "a replica that the kernel kills": Course(
        first(ended(0, 137, reason="OOMKilled")), 137, ["failed first, with exit code 137 (OOMKilled)"]
    ),
    "an exit code that no process can have": Course(first(ended(0, 256)), 1, ["first, with exit code 256"]),
    "an image that cannot be pulled": Course(
        [*(Look([PULLS[number % 2], Pod(1)]) for number in range(4)), DONE],
        says=["1 of 2 replicas run; trainer/0 waits: ErrImagePull: no such image"],
        never=["back-off"],
    ),
    "a replica that no node has room for": Course(
        [Look([PENDING, Pod(1)]), Look([PENDING, Pod(1)]), DONE],
        says=["1 of 2 replicas run; trainer/0 waits: Unschedulable: no node has a GPU"],
    ),
    "an init container that waits": Course(
        [
            Look([Pod(0, {}, {"initContainerStatuses": [{"state": waits(0, "CrashLoopBackOff").state}]})]),
            DONE,
        ],
        says=["0 of 2 replicas run; trainer/0 waits: CrashLoopBackOff"],
    ),
    "replicas that are about to start": Course(
        [Look([waits(0, "ContainerCreating"), waits(1, "PodInitializing")]), DONE],
        says=["0 of 2 replicas run\n"],
        never=["waits"],
    ),
    "a Job that its queue has not admitted": Course(
        [Look(spec={"suspend": True}), Look(spec={"suspend": True}), Look(BOTH), DONE],
        says=["0 of 2 replicas run; it is suspended: a queue has not admitted it yet"],
    ),
    "a TrainJob that its queue preempts": Course(
        [
            Look(BOTH),
            Look([Pod(0, **LATER), ended(1, 143, **LATER)], spec={"suspend": True}),
            Look([ended(0, 143, **LATER)], spec={"suspend": True}),
            Look([Pod(0, **FIRST_AGAIN), Pod(1, **AGAIN)]),
            Look([ended(0, 0, **FIRST_AGAIN), ended(1, 0, **AGAIN)]),
            DONE,
        ],
        says=["0 of 2 replicas run; it is suspended"],
        spec={"ends": True},
    ),
    "a TrainJob that is suspended and resumed between two looks": Course(
        [
            Look(BOTH),
            Look([ended(0, 143, **LATER), ended(1, 143, **LATER)], RESUMED),
            Look([Pod(0, **FIRST_AGAIN), Pod(1, **AGAIN)], RESUMED),
            Look([Pod(0, **FIRST_AGAIN), ended(1, 7, **AGAIN)], RESUMED),
            Look([Pod(0, **FIRST_AGAIN), ended(1, 7, **AGAIN)], RESUMED),
        ],
        7,
        ["trainer/1 (pod pod-1-again, node node-1) failed first, with exit code 7"],
        spec={"ends": True},
    ),
    "a replica of a TrainJob that fails after another was preempted": Course(
        [
            Look(BOTH),
            Look([ended(0, 143, **LATER), ended(1, 143, **LATER)], spec={"suspend": True}),
            Look([Pod(0, **FIRST_AGAIN), Pod(1, **AGAIN)]),
            *[Look([Pod(0, **FIRST_AGAIN), ended(1, 7, **AGAIN)])] * 2,
        ],
        7,
        ["trainer/1 (pod pod-1-again, node node-1) failed first, with exit code 7"],
        spec={"ends": True},
    ),
    "an object without pods": Course(
        [*[Look()] * 30, DONE],
        says=[
            "0 of 2 replicas run; it has no pods yet\n",
            "no pods yet: kubectl describe jobs.batch train-b5b828bd2d -n recorded-job-succeeds\n",
        ],
    ),
    "somebody deletes the object": Course(
        [Look(BOTH), Look(gone=True)],
        1,
        ["train-b5b828bd2d was deleted by something else before its replicas ended"],
    ),
    "another attempt follows the object": Course(
        [Look(BOTH), Look(annotations={"torchx-kfp/launcher": "workflow-train-1_00000000"})],
        1,
        ["another attempt of this stage follows train-b5b828bd2d now"],
    ),
    "somebody removes the annotations": Course([Look(BOTH), Look(annotations={})], 1, ["another attempt"]),
    "the log of the first replica alone": Course(
        [Look(BOTH), Look([ended(0, 0), ended(1, 3)], FAILED)],
        3,
        ["\ntrainer/0 | line of pod-0\n", "\n  trainer/1 | line of pod-1\n"],
        ["\ntrainer/1 | line"],
        spec={"logs": "first"},
    ),
    "no replica's log, but that of the first failure": Course(
        [Look(BOTH), Look([ended(0, 0), ended(1, 3)], FAILED)],
        3,
        ["\n  trainer/1 | line of pod-1\n"],
        ["\ntrainer/0 |", "\ntrainer/1 |"],
        spec={"logs": "none"},
    ),
}


@pytest.mark.parametrize("name", COURSES)
def test_a_stage_ends_as_its_course_says(name: str, tmp_path: Path) -> None:
    one = COURSES[name]
    recording = course(f"{one.engine}.succeeds", one.looks, fails=one.code > 0, **one.spec)
    with start(recording, tmp_path) as attempt:
        assert attempt.ends() == one.code, attempt.log
    assert attempt.replay.repeated == []
    assert attempt.asked == [f"{each.method} {each.path}" for each in recording.exchanges if not each.is_log]
    # The order of replicas' lines is theirs.
    for fact in one.says:
        assert f"\n{attempt.log}".count(fact) == 1, attempt.log
    assert not [fact for fact in one.never if fact in attempt.log], attempt.log


# What the API server refuses

BUSY: list[tuple[int, Any]] = [(503, "busy"), (401, ""), (429, ""), (0, ""), (500, {"message": "the database"})]
DENIED = {"message": 'jobs.batch is forbidden: User "x" cannot get resource "jobs"'}
HINT = "torchx-kfp rbac --engine job --namespace recorded-job-succeeds --service-account {} | kubectl apply -f -"


@dataclass(frozen=True)
class Refusal:
    """A request that is refused after some that were not, and how the stage ends; ``left`` if it deletes its object."""

    request: str
    after: int
    answers: Sequence[tuple[int, Any]]
    code: int = 0
    says: Sequence[str] = ()
    never: Sequence[str] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    deletes: bool = False


REFUSALS: Mapping[str, Refusal] = {
    "a right is missing": Refusal("GET .*/jobs/", 0, [(403, DENIED)], 1, ["403 jobs.batch", HINT.format("launcher")]),
    "the account of the stage is named": Refusal(
        "GET .*/jobs/", 0, [(403, DENIED)], 1, [HINT.format("editor")], environ={"KFP_SERVICE_ACCOUNT": "editor"}
    ),
    "a quota": Refusal("POST .*/jobs", 0, [(403, {"message": "exceeded quota: few"})], 1, ["exceeded quota"], ["rbac"]),
    "a quota for services": Refusal(
        "POST .*/services", 0, [(403, {"message": "exceeded quota: few"})], 1, ["exceeded quota"]
    ),
    "an engine that is not installed": Refusal(
        "POST .*/jobs", 0, [(404, "404 page not found\n")], 1, ["the engine 'job' needs Kubernetes 1.24 or newer"]
    ),
    "a manifest that is rejected": Refusal("POST .*/jobs", 0, [(422, {"message": "bad"})], 1, [": 422 bad"]),
    "the API server is busy for a while": Refusal("GET .*/jobs/", 1, BUSY, 0, ["the API server does not answer (500"]),
    "it is busy when the object is made": Refusal("POST .*/jobs", 0, BUSY[:3], 0, never=["does not answer"]),
    "a right to look at pods is denied for a moment": Refusal("GET .*labelSelector", 2, [(403, DENIED)] * 2),
    "a right to look at the object is denied for a moment": Refusal("GET .*/jobs/", 2, [(403, DENIED)] * 2),
    "a launcher that gives up deletes its object": Refusal(
        "GET .*labelSelector", 2, [(400, "no")], 1, [": 400 no", "train-b5b828bd2d is deleted"], deletes=True
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_request_is_refused(name: str, tmp_path: Path) -> None:
    one = REFUSALS[name]
    recording = read("job.succeeds")
    expected = insert(recording, one.request, one.after, one.answers)
    if one.code:
        requests = [each for each in expected.exchanges if not each.is_log]
        end = next(n for n, each in enumerate(requests) if (each.status, each.answer) == one.answers[-1])
        deletion = [each for each in read("job.fails").exchanges if each.method == "DELETE"]
        path = next(each.path for each in requests if each.path.endswith("/train-b5b828bd2d"))
        logs = [each for each in expected.exchanges if each.is_log]
        last = [replace(deletion[0], path=path)] * one.deletes
        expected = replace(expected, exchanges=[*requests[: end + 1], *last, *logs])
    with start(replace(expected, environ={**recording.environ, **one.environ}), tmp_path) as attempt:
        assert attempt.ends() == one.code, attempt.log
    assert attempt.asked == [f"{each.method} {each.path}" for each in expected.exchanges if not each.is_log]
    assert all(fact in attempt.log for fact in one.says), attempt.log
    assert not any(fact in attempt.log for fact in one.never), attempt.log


def test_patience_with_the_api_server_ends_after_ten_minutes(tmp_path: Path) -> None:
    recording = read("job.succeeds")
    owner, missing, *_ = recording.exchanges
    refused = replace(recording, exchanges=[replace(owner, status=503, answer="busy"), missing])
    with start(refused, tmp_path, speed=2000) as attempt:
        assert attempt.ends() == 1
    assert attempt.said[0] == "torchx-kfp: the API server does not answer (503 busy); trying for 596 s more"
    assert "no answer from the API server for " in attempt.said[-1]
    assert 40 < len(attempt.replay.repeated) < 60


#: What Python 3.13 does by default. The authorities of many clusters, and of the tests, have no key identifiers.
STRICT = """
import ssl
relaxed = ssl.create_default_context
def create(**options):
    context = relaxed(**options)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context
ssl.create_default_context = create
"""


def test_an_authority_that_python_313_rejects_is_trusted(tmp_path: Path) -> None:
    with start(read("job.succeeds"), tmp_path, prefix=STRICT) as attempt:
        assert attempt.ends() == 0, attempt.log


def test_an_unknown_authority_is_a_failure_at_once(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    authority = Authority(tmp_path / "other").create().file
    with start(read("job.succeeds"), tmp_path, authority=authority) as attempt:
        assert attempt.ends() == 1
    (line,) = attempt.said
    assert line.startswith("torchx-kfp: https://127.0.0.1")
    assert "CERTIFICATE_VERIFY_FAILED" in line


def test_a_new_token_is_used(tmp_path: Path) -> None:
    def before(attempt: Attempt, request: str) -> None:
        if request.startswith("POST"):
            attempt.replay.tokens.append("another token")
            (tmp_path / "account" / "token").write_text("another token")

    with start(read("job.succeeds"), tmp_path, before=before) as attempt:
        assert attempt.ends() == 0, attempt.log
    assert attempt.replay.last_token == "another token"


@pytest.mark.parametrize("name", ["job.fails", "job.terminated"])
def test_the_exit_code_survives_a_deletion_that_fails(name: str, tmp_path: Path) -> None:
    recording = read(name)
    exchanges = [
        replace(one, status=403, answer={"message": "no"}) if one.method == "DELETE" else one
        for one in recording.exchanges
    ]
    with start(replace(recording, exchanges=exchanges), tmp_path) as attempt:
        if name == "job.terminated":
            attempt.wait_for(lambda: attempt.replay.repeated)
            attempt.process.send_signal(signal.SIGTERM)
        assert attempt.ends() == recording.code
    assert "train-b5b828bd2d is not deleted: DELETE" in attempt.log


# Logs


def logs(recording: Recording, *answers: tuple[int, str]) -> Recording:
    """Return the recording with other answers to requests for logs; ``{}`` is the recorded text."""
    exchanges = []
    for one in recording.exchanges:
        changed = [replace(one, status=code, answer=text.replace("{}", str(one.answer))) for code, text in answers]
        exchanges += changed if one.is_log else [one]
    return replace(recording, exchanges=exchanges)


@pytest.mark.parametrize("status", [200, 0], ids=["ended", "broken"])
@pytest.mark.parametrize("length", [1, 20, 33, -1])
def test_a_log_that_is_cut_off_is_shown_whole(status: int, length: int, tmp_path: Path) -> None:
    """Reading goes on where a line is cut off; a last line without an end is one, too."""
    recording = read("job.succeeds")
    exchanges = []
    for one in recording.exchanges:
        text = str(one.answer).rstrip("\n")
        cut = [replace(one, status=status, answer=text[:length]), replace(one, answer=text)]
        exchanges += cut if one.is_log else [one]
    with start(replace(recording, exchanges=exchanges), tmp_path) as attempt:
        assert attempt.ends() == 0, attempt.log
    assert (attempt.said, attempt.shown) == (recording.said, recording.shown)


@pytest.mark.parametrize(("status", "most"), [(500, 2 * 10 * 31), (403, 2)])
def test_a_log_that_cannot_be_read_does_not_fail_the_stage(status: int, most: int, tmp_path: Path) -> None:
    """It is said once for each replica, and the API server is not asked all the time."""
    recording = read("job.succeeds")
    with start(logs(recording, (status, "no")), tmp_path) as attempt:
        assert attempt.ends() == 0, attempt.log
    problems = [f"torchx-kfp: trainer/{index}: its log cannot be read: {status} no" for index in "01"]
    assert sorted(attempt.said) == sorted([*recording.said, *problems])
    assert attempt.shown == {}
    # The launcher waits 30 s for two logs, and asks every tenth of a second at most.
    assert attempt.replay.logs <= most


def test_a_log_whose_pod_cannot_be_looked_up_is_read_later(tmp_path: Path) -> None:
    """The connection breaks, and nobody says whether the pod is still there; it may be known again."""
    recording = logs(read("job.succeeds"), (0, "{}"), (200, "{}"))
    # The first list has those pods that existed by then.
    lists = [one for one in recording.exchanges if "labelSelector" in one.path]
    look = max(lists, key=lambda one: len(one.answer["items"]))
    exchanges = [*recording.exchanges]
    for item in look.answer["items"]:
        path = f"{look.path.partition('?')[0]}?fieldSelector=metadata.name%3D{item['metadata']['name']}"
        one = replace(look, path=path, answer={**look.answer, "items": [item]})
        exchanges += [replace(one, status=400, answer="no"), one]
    with start(replace(recording, exchanges=exchanges), tmp_path) as attempt:
        assert attempt.ends() == 0, attempt.log
    assert attempt.shown == recording.shown
    assert attempt.log.count("its log cannot be read: GET ") == 2, "once for each replica"


def test_lines_whose_times_go_back_and_long_lines_are_shown(tmp_path: Path) -> None:
    """The runtime stamps stdout and stderr one beside the other, and clocks are set back."""
    texts = ["a", "b", "c", "x" * 200_000, "\rd\re"]
    seconds = ["01.1", "01.3", "01.2", "00.9", "02"]
    text = "".join(f"2026-01-01T00:00:{at}Z {line}\n" for at, line in zip(seconds, texts, strict=True))
    with start(logs(read("job.succeeds"), (200, text)), tmp_path) as attempt:
        assert attempt.ends() == 0
    found = (tmp_path / "log").read_bytes().decode().replace("torchx-kfp: ", "\ntorchx-kfp: ").split("\n")
    shown = "".join(line.removeprefix("trainer/0 | ") for line in found if line.startswith("trainer/0 | "))
    # A long line comes in pieces; a progress bar begins its line again.
    assert shown == f"abc{'x' * 200_000}\rtrainer/0 | d\rtrainer/0 | e"

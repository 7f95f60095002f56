"""What the ends of runs mean, what is removed after errors and Ctrl-C, and checks that hang or are about versions."""

from __future__ import annotations

import ast
import re
import signal
import threading
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tests.execution.host.answers_of_kfp import last, manifest
from tests.execution.host.scripted import Reply, Request, scripted
from tests.facts import says
from tests.fake_kfp import KfpHost
from tests.fake_kfp.faults import Fault
from tests.s3 import S3Server
from torchx_kfp.entrypoints.doctor import base_access, probe_program, proof, verdicts
from torchx_kfp.entrypoints.doctor.machine import check_packages, check_python
from torchx_kfp.entrypoints.doctor.pod_options import PodOptions
from torchx_kfp.entrypoints.doctor.probe_pipelines import FIRST, RETRIED, SECOND
from torchx_kfp.entrypoints.doctor.proof import Ended, Wanted, judge_cache, judge_stages, prove
from torchx_kfp.entrypoints.doctor.verdicts import Level, Verdict, guarded, ok, said, within
from torchx_kfp.errors import HostError
from torchx_kfp.execution.host.connection import Connection, Patience
from torchx_kfp.execution.host.host_runs import Host
from torchx_kfp.execution.host.run import PollPolicy
from torchx_kfp.execution.host.settings import Settings
from torchx_kfp.local import RunResult, StageResult, State

RUN = "43ae9826-b5ba-4f2b-a609-ad28f873f6c6"


QUICK = PollPolicy(shortest=0.05, share=1.0)


def proved(connection: Connection, base: Path, **pod: Any) -> dict[str, Verdict]:
    """Return what runs prove, by subject. Stages have a volume at the base."""
    wanted = Wanted(str(base), PodOptions(**{"image": "app:1", "volume": "claim", **pod}), policy=QUICK)
    return {verdict.subject: verdict for verdict in prove(Host(connection), wanted)}


def is_clean(host: KfpHost, base: Path) -> bool:
    return not host.runs and not [path for path in base.rglob("*") if path.is_file()]


def test_a_run_that_appears_after_its_answer_was_given_up_is_removed(kfp_host: KfpHost, tmp_path: Path) -> None:
    """As after Ctrl-C while a busy host takes the run."""
    kfp_host.add(Fault(path="runs$", method="POST", seconds=4))
    found = proved(Connection(Settings(host=kfp_host.url), Patience(read=2)), tmp_path / "results")
    assert "may have accepted the run" in found["runs"].found
    assert found["cleaned up"].found.startswith("1 run and "), found["cleaned up"]
    assert is_clean(kfp_host, tmp_path / "results")


def test_a_run_that_never_appears_is_named(
    kfp_host: KfpHost, connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof, "_LOOKING", 0.0)
    kfp_host.add(Fault(path="runs$", method="POST", cut=0))
    left = proved(connection, tmp_path / "results")["cleaned up"]
    assert left.level.value == "warning"
    assert re.search(says("perhaps a run named 'torchx-kfp doctor ", "three stages'"), left.found)


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_while_everything_is_removed(
    kfp_host: KfpHost, connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """The first one starts the removal again, the second one ends it, and names what is left."""
    base, said, left = tmp_path / "results", list[str](), [times]
    wait = proof.Made._wait

    def interrupted(self: proof.Made, run_id: str, deadline: float) -> None:
        if left[0]:
            left[0] -= 1
            raise KeyboardInterrupt
        wait(self, run_id, deadline)

    monkeypatch.setattr(proof.Made, "_wait", interrupted)
    pod = PodOptions("app:1", volume="claim")
    with pytest.raises(KeyboardInterrupt):
        list(prove(Host(connection), Wanted(str(base), pod, say=said.append, policy=QUICK)))
    if times == 1:
        assert is_clean(kfp_host, base)
    else:
        assert len(kfp_host.runs) == 3
        assert re.search(says("Left over", *kfp_host.runs), said[-1])


def test_the_program_is_for_old_pythons() -> None:
    source = Path(probe_program.__file__).read_text(encoding="utf-8")
    ast.parse(source, feature_version=(3, 8))
    assert not re.search(r"\{\{|\$\(|\bmatch \w+:|removeprefix| \| None", source), (
        "Argo, the kubelet or Python 3.8 lack it"
    )


def test_a_pod_whose_image_cannot_be_pulled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recorded run never ends."""
    monkeypatch.setattr(proof, "_FORBEARANCE", 0.0)
    run = last("stuck")

    def answer(request: Request) -> Reply:
        return Reply(manifest("stuck") if "v1beta1" in request.path else run)

    with scripted(answer) as server:
        host = Host(Connection(Settings(host=server.url)))
        ended = proof._wait(host, run["run_id"], Wanted("s3://bucket/results", PodOptions()))
    assert re.search(says("cannot start", "ErrImagePull"), ended.problem)
    assert not proof._HOPELESS.match("Unschedulable: 0/1 nodes are available: 1 Insufficient cpu.")
    assert proof._HOPELESS.match('Unschedulable: persistentvolumeclaim "claim" not found. preemption: ...')
    [verdict, rest] = judge_stages(ended, "s3://bucket/results")
    assert (verdict.level.value, rest.level.value) == ("missing", "skipped")
    assert re.search(says("ErrImagePull", "--image IMAGE"), str(verdict))


def stage(name: str, state: State = State.SUCCEEDED, **more: Any) -> StageResult:
    return StageResult(name, name, state, **more)


GOOD = {
    FIRST: stage(
        FIRST, run_id=f"{RUN}/first/pod-1_deadbeef", results={"token": "t", "label": RUN, "uid": "deadbeef-1"}
    ),
    SECOND: stage(SECOND, results={"read": "t"}),
    RETRIED: stage(RETRIED, results={"attempts": 2}),
}


def ended(problem: str = "", sentences: Mapping[str, str] | None = None, why: str = "", **stages: StageResult) -> Ended:
    found = tuple({**GOOD, **stages}.values())
    return Ended(RunResult("doctor", RUN, State.SUCCEEDED, None, 1.0, found, reason=why), problem, sentences or {})


def first(**results: object) -> dict[str, StageResult]:
    own = {"token": "t", "label": RUN, "uid": "deadbeef-1", **results}
    return {FIRST: stage(FIRST, run_id=f"{RUN}/first/pod-1_deadbeef", results=own)}


def failed(name: str, code: int) -> dict[str, StageResult]:
    return {name: stage(name, State.FAILED, exit_code=code, reason=f"failed with exit code {code}")}


def never(name: str) -> dict[str, StageResult]:
    return {name: stage(name, State.NOT_RUN, reason="was not run")}


NOT_IN_TIME = ended("The run has not ended within 10s.", first=stage(FIRST, State.RUNNING))
NO_KEYS = 'first cannot start: CreateContainerConfigError: secret "keys" not found.'
NO_ACCOUNT = 'pods "a" is forbidden: serviceaccount "b" not found'
NO_CREDENTIALS = {FIRST: "the tracker base s3://b/r cannot be used: NoCredentialsError"}
BETWEEN, LABEL, RETRIES = "results between stages", "label of pods", "retries of the cluster"
#: Ends of runs, what is missing, or a warning where a question mark follows it, and facts of the sentence.
ENDS = [
    (ended(first=stage(FIRST, results=None)), BETWEEN, ["cannot be read here", "s3://b/r"]),
    (ended(**failed(FIRST, 127)), "first stage", ["exit code 127", "python3", "--image"]),
    (NOT_IN_TIME, "first stage", ["has not ended within 10s"]),
    (
        ended(sentences=NO_CREDENTIALS, **failed(FIRST, 4)),
        "first stage",
        ["NoCredentialsError", "--env AWS_ENDPOINT_URL", "--secret"],
    ),
    (
        ended(NO_KEYS, first=stage(FIRST, State.QUEUED)),
        "first stage",
        ['secret "keys" not found', "namespace of the runs", "get secrets"],
    ),
    (ended(why=NO_ACCOUNT, **never(FIRST)), "first stage", ["The run failed: pods", 'serviceaccount "b" not found.']),
    (ended(**failed(SECOND, 4)), BETWEEN, ["exit code 4"]),
    (ended(**first(label="")), LABEL, ["KFP_RUN_ID is ''", "labels"]),
    (ended(**first(label="another run")), LABEL, ["KFP_RUN_ID is 'another run'"]),
    (ended(**first(uid="")), "KFP_POD_UID?", ["not set", "retries a run"]),
    (ended(**first(uid="other")), "KFP_POD_UID?", ["'other'", "deadbeef"]),
    (
        ended(**failed(RETRIED, 5)),
        f"{RETRIES}?",
        ["not started again", "max_retries", "templateDefaults.retryStrategy"],
    ),
    (ended(**never(RETRIED)), f"{RETRIES}?", ["was not run"]),
]


@pytest.mark.parametrize(("run", "subject", "facts"), ENDS)
def test_something_is_wrong_with_the_stages(run: Ended, subject: str, facts: list[str]) -> None:
    found = {verdict.subject: verdict for verdict in judge_stages(run, "s3://b/r")}[subject.rstrip("?")]
    assert found.level is (Level.WARNING if subject.endswith("?") else Level.MISSING)
    assert re.search(says(*facts), str(found)), found


def test_rights_that_the_launcher_lacks_are_named(tmp_path: Path) -> None:
    """The line of the launcher says which, and how to grant them."""
    log = tmp_path / "log.txt"
    denied = 'torchx-kfp: POST apis/jobset.x-k8s.io/v1alpha2: 403 User "a" cannot create resource "jobsets"'
    way_out = "an administrator can grant it: torchx-kfp rbac --engine jobset | kubectl apply -f -"
    log.write_text(f"starting\n{denied}; {way_out}\nF1123 main.go:59] failed\n")
    assert re.search(says("cannot create", way_out), proof._sentence(stage("meet", State.FAILED, log_file=log)))
    log.write_text("torchx-kfp doctor: one\ntorchx-kfp doctor: the last.\nother\n")
    assert proof._sentence(stage("meet", State.FAILED, log_file=log)) == "the last"
    assert proof._sentence(stage("meet", State.FAILED, log_file=tmp_path / "none")) == ""
    log.write_text("a\nsh: 1: python3: not found\n\n")
    crashed = stage("meet", State.FAILED, reason="failed with exit code 127", log_file=log)
    assert proof._sentence(crashed) == (
        "the stage failed with exit code 127, and its log ends with 'sh: 1: python3: not found'"
    )


def test_a_second_run_that_is_not_cached() -> None:
    found = judge_cache(ended(first=stage(FIRST, State.CACHED)))
    assert found.level.value == "warning"
    assert re.search(says("first cached", "second succeeded", "cache switched off"), str(found))


@pytest.mark.parametrize(
    ("version", "level"), [((3, 9, 1), "warning"), ((3, 10, 0), "ok"), ((3, 13, 9), "ok"), ((3, 14, 0), "warning")]
)
def test_the_version_of_python(version: tuple[int, ...], level: str) -> None:
    [found] = check_python(version)
    assert found.level.value == level
    assert re.search(says("Python", ".".join(map(str, version))), str(found))
    assert ("3.10 to 3.13" in str(found)) == (level == "warning")


def test_packages_that_are_missing_or_have_another_name() -> None:
    packages: dict[str, tuple[str, list[str]]] = dict.fromkeys(("kfp-kubernetes", "kfp-server-api"), ("2.16.1", []))
    packages |= {"torchx-kfp": ("0.2.0", ["torchx>=0.7"]), "torchx-nightly": ("2026.10.1", ["urllib3>=2"])}
    packages |= {"kfp": ("2.16.1", []), "urllib3": ("2.5.0", []), "fsspec": ("2026.9.0", [])}

    def look(name: str) -> tuple[str, list[str]]:
        if name not in packages:
            raise metadata.PackageNotFoundError(name)
        return packages[name]

    assert [found.level for found in check_packages(look)] == [Level.OK]
    del packages["kfp"]
    [found] = check_packages(look)
    assert found.level is Level.MISSING
    assert re.search(says("no 'kfp'", 'pip install "torchx-kfp[pipelines]"'), str(found))


@pytest.mark.s3
def test_a_store_that_does_not_answer(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base_access, "_SECONDS", 0.5)
    go = threading.Event()

    def answer(request: Request) -> Reply:
        go.wait(60)
        return Reply()

    with scripted(answer) as store:
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.url)
        [found] = base_access.check_base("s3://bucket/results")
        go.set()
    assert found.level is Level.MISSING
    assert re.search(says("s3://bucket/results", "no answer within 0.5 s", "your network"), str(found))


def test_an_error_ends_its_checks_only() -> None:
    def checks() -> Iterator[Verdict]:
        yield ok("one", "Fine.")
        raise KeyError("a\nb\x1b[31m")

    first, last = guarded("two", checks)
    assert str(first) == "ok       one: Fine."
    assert (last.level, last.subject) == (Level.MISSING, "two")
    assert "\n" not in last.found
    assert "\x1b" not in last.found


def test_messages_are_one_line() -> None:
    assert said(HostError("Give one:\n- this;\n  that.")) == "Give one: - this; that."
    assert said(OSError(2, "No such file")).startswith("FileNotFoundError: ")
    assert len(said(HostError("x" * 10_000))) < 1000


def test_a_call_that_hangs_is_left_behind() -> None:
    ended = threading.Event()
    with pytest.raises(TimeoutError, match=r"0\.01 s"):
        within(0.01, lambda: ended.wait(60))
    ended.set()
    assert within(30, lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        within(30, lambda: 1 / 0)


def test_after_ctrl_c_an_action_removes_what_it_has_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "_SETTLING", 60.0)
    handled, removed = threading.Event(), list[int]()

    def handle(number: int, frame: object) -> None:
        handled.set()
        raise KeyboardInterrupt

    def action() -> None:
        # When the action is waited for.
        threading.Timer(0.1, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT)).start()
        assert handled.wait(60)
        removed.append(sum(range(5_000_000)))

    previous = signal.signal(signal.SIGINT, handle)
    try:
        with pytest.raises(KeyboardInterrupt):
            within(60, action)
        assert removed
    finally:
        signal.signal(signal.SIGINT, previous)

"""Runs that prove what only pods can, on the host of the tests, and what is said if something is wrong there."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.execution.host.answers_of_kfp import last, manifest
from tests.execution.host.scripted import Reply, Request, scripted
from tests.facts import says
from tests.fake_kfp import KfpHost
from tests.fake_kfp.faults import Fault
from torchx_kfp.entrypoints.doctor import probe_program, proof
from torchx_kfp.entrypoints.doctor.pod_options import PodOptions
from torchx_kfp.entrypoints.doctor.probe_pipelines import FIRST, RETRIED, SECOND
from torchx_kfp.entrypoints.doctor.proof import Ended, Wanted, judge_cache, judge_stages, prove
from torchx_kfp.entrypoints.doctor.verdicts import Verdict
from torchx_kfp.execution.host.connection import Connection, Patience
from torchx_kfp.execution.host.host_runs import Host
from torchx_kfp.execution.host.run import PollPolicy
from torchx_kfp.execution.host.settings import Settings
from torchx_kfp.execution.runs.result import RunResult, StageResult
from torchx_kfp.execution.runs.vocabulary import State

RUN = "43ae9826-b5ba-4f2b-a609-ad28f873f6c6"


QUICK = PollPolicy(shortest=0.05, share=1.0)


def proved(connection: Connection, base: Path, **pod: Any) -> dict[str, Verdict]:
    """Return what runs prove, by subject. Stages have a volume at the base."""
    wanted = Wanted(str(base), PodOptions(**{"image": "app:1", "volume": "claim", **pod}), policy=QUICK)
    return {verdict.subject: verdict for verdict in prove(Host(connection), wanted)}


def without_fsspec(folder: Path) -> dict[str, str]:
    """Return the variables of an image that lacks fsspec."""
    (folder / "lacking").mkdir()
    (folder / "lacking" / "fsspec.py").write_text("raise ImportError('there is none')")
    return {"PYTHONPATH": str(folder / "lacking")}


def is_clean(host: KfpHost, base: Path) -> bool:
    return not host.runs and not [path for path in base.rglob("*") if path.is_file()]


def test_an_image_without_fsspec(kfp_host: KfpHost, connection: Connection, tmp_path: Path) -> None:
    """The line says what is missing, the other checks go on, and nothing is left."""
    base = tmp_path / "results"
    found = proved(connection, base, env=without_fsspec(tmp_path))
    assert found["first stage"].level.value == "missing"
    assert re.search(says("The image lacks fsspec (there is none)", "--image IMAGE"), str(found["first stage"]))
    assert found["cancel"].level.value == "ok"
    assert found["cleaned up"].found == "2 runs and 0 files are removed."
    assert is_clean(kfp_host, base)


def test_an_image_in_which_nothing_can_be_installed(kfp_host: KfpHost, connection: Connection, tmp_path: Path) -> None:
    env = {**without_fsspec(tmp_path), "PIP_NO_INDEX": "1"}
    found = proved(connection, tmp_path / "results", image="", env=env)
    assert re.search(says("python:3.12-alpine", "install what it lacks", "--image"), str(found["image"]))
    facts = says("image lacks fsspec (there is none)", "pip cannot install", "--image IMAGE")
    assert re.search(facts, str(found["first stage"])), found["first stage"]


def test_a_tracker_base_that_pods_cannot_use(kfp_host: KfpHost, connection: Connection, tmp_path: Path) -> None:
    found = proved(connection, tmp_path / "results", volume="")
    assert found["tracker base of pods"].level.value == "missing"
    assert re.search(says("is a directory of the pod", "--volume CLAIM"), str(found["tracker base of pods"]))
    assert not kfp_host.count("runs$", "POST")


@pytest.mark.s3
def test_pods_that_do_not_reach_the_storage(kfp_host: KfpHost, connection: Connection, s3_base: str) -> None:
    env = {"AWS_ENDPOINT_URL": "http://store.invalid:9000", "AWS_MAX_ATTEMPTS": "1"}
    found = {
        each.subject: each for each in prove(Host(connection), Wanted(s3_base, PodOptions("app:1", env), policy=QUICK))
    }
    facts = says(f"tracker base {s3_base} cannot be used", "store.invalid", "--env AWS_ENDPOINT_URL", "--secret")
    assert re.search(facts, str(found["first stage"])), found["first stage"]
    assert not kfp_host.runs


def test_a_host_that_takes_no_run(kfp_host: KfpHost, connection: Connection, tmp_path: Path) -> None:
    kfp_host.fail(403, path="runs$", method="POST", times=2)  # the connection reads its settings again
    found = proved(connection, tmp_path / "results")
    assert found["runs"].level.value == "missing"
    assert "403" in found["runs"].found
    assert "cleaned up" not in found


def test_a_run_whose_answer_is_lost_is_removed(kfp_host: KfpHost, connection: Connection, tmp_path: Path) -> None:
    kfp_host.add(Fault(path="runs$", method="POST", cut=0.5))
    found = proved(connection, tmp_path / "results")
    assert "may have accepted the run" in found["runs"].found
    assert found["cleaned up"].level.value == "ok"
    assert is_clean(kfp_host, tmp_path / "results")


def test_a_run_that_appears_after_its_answer_was_given_up_is_removed(kfp_host: KfpHost, tmp_path: Path) -> None:
    """As after Ctrl-C while a busy host takes the run."""
    kfp_host.add(Fault(path="runs$", method="POST", seconds=1))
    found = proved(Connection(Settings(host=kfp_host.url), Patience(read=0.5)), tmp_path / "results")
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
    pod = PodOptions("app:1", without_fsspec(tmp_path), volume="claim")
    with pytest.raises(KeyboardInterrupt):
        list(prove(Host(connection), Wanted(str(base), pod, say=said.append, policy=QUICK)))
    if times == 1:
        assert is_clean(kfp_host, base)
    else:
        assert len(kfp_host.runs) == 2
        assert re.search(says("Left over", *kfp_host.runs), said[-1])


def test_a_host_that_does_not_name_stages(kfp_host: KfpHost, connection: Connection, tmp_path: Path) -> None:
    kfp_host.served -= {"v1beta1"}
    found = proved(connection, tmp_path / "results")
    assert re.search(says("reports only the state of the run", "v1beta1"), found["first stage"].found)
    assert "pipeline root" not in found
    assert is_clean(kfp_host, tmp_path / "results")


def test_what_cannot_be_removed_is_named(kfp_host: KfpHost, connection: Connection, tmp_path: Path) -> None:
    kfp_host.fail(403, method="DELETE", times=9)
    found = proved(connection, tmp_path / "results", env=without_fsspec(tmp_path))
    left = found["cleaned up"]
    assert left.level.value == "warning"
    assert re.search(says("Left over", "403", *kfp_host.runs), left.found)


def test_an_error_of_the_caller_removes_everything(kfp_host: KfpHost, connection: Connection, tmp_path: Path) -> None:
    base, said = tmp_path / "results", list[str]()
    wanted = Wanted(str(base), PodOptions("app:1", volume="claim"), say=said.append, policy=QUICK)
    verdicts = prove(Host(connection), wanted)
    while next(verdicts).subject != "cancel":
        pass
    assert kfp_host.runs
    verdicts.close()
    assert "are removed" in said[-1]
    assert is_clean(kfp_host, base)


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


# What the ends of stages mean


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


def test_everything_is_well() -> None:
    found = list(judge_stages(ended(), "s3://b/r"))
    assert [(verdict.subject, verdict.level.value) for verdict in found] == [
        ("results between stages", "ok"),
        ("label of pods", "ok"),
        ("KFP_POD_UID", "ok"),
        ("retries of the cluster", "ok"),
    ]
    cached = {name: stage(name, State.CACHED) for name in GOOD}
    assert judge_cache(ended(**cached)).level.value == "ok"


def first(**results: object) -> dict[str, StageResult]:
    own = {"token": "t", "label": RUN, "uid": "deadbeef-1", **results}
    return {FIRST: stage(FIRST, run_id=f"{RUN}/first/pod-1_deadbeef", results=own)}


@pytest.mark.parametrize(
    ("run", "subject", "level", "facts"),
    [
        (
            ended(first=stage(FIRST, results=None)),
            "results between stages",
            "missing",
            ["cannot be read here", "s3://b/r"],
        ),
        (
            ended(first=stage(FIRST, State.FAILED, exit_code=127, reason="failed with exit code 127")),
            "first stage",
            "missing",
            ["exit code 127", "python3", "--image"],
        ),
        (
            ended("The run has not ended within 10s.", first=stage(FIRST, State.RUNNING)),
            "first stage",
            "missing",
            ["has not ended within 10s"],
        ),
        (
            ended(
                sentences={FIRST: "the tracker base s3://b/r cannot be used: NoCredentialsError"},
                first=stage(FIRST, State.FAILED, exit_code=4, reason="failed with exit code 4"),
            ),
            "first stage",
            "missing",
            ["NoCredentialsError", "--env AWS_ENDPOINT_URL", "--secret"],
        ),
        (
            ended(
                'first cannot start: CreateContainerConfigError: secret "keys" not found.',
                first=stage(FIRST, State.QUEUED),
            ),
            "first stage",
            "missing",
            ['secret "keys" not found', "namespace of the runs", "get secrets"],
        ),
        (
            ended(
                why='pods "a" is forbidden: serviceaccount "b" not found',
                first=stage(FIRST, State.NOT_RUN, reason="was not run"),
            ),
            "first stage",
            "missing",
            ["The run failed: pods", 'serviceaccount "b" not found.'],
        ),
        (
            ended(second=stage(SECOND, State.FAILED, reason="failed with exit code 4")),
            "results between stages",
            "missing",
            ["exit code 4"],
        ),
        (ended(**first(label="")), "label of pods", "missing", ["KFP_RUN_ID is ''", "labels"]),
        (ended(**first(label="another run")), "label of pods", "missing", ["KFP_RUN_ID is 'another run'"]),
        (ended(**first(uid="")), "KFP_POD_UID", "warning", ["not set", "retries a run"]),
        (ended(**first(uid="other")), "KFP_POD_UID", "warning", ["'other'", "deadbeef"]),
        (
            ended(retried=stage(RETRIED, State.FAILED, exit_code=5, reason="failed with exit code 5")),
            "retries of the cluster",
            "warning",
            ["not started again", "max_retries", "templateDefaults.retryStrategy"],
        ),
        (
            ended(retried=stage(RETRIED, State.NOT_RUN, reason="was not run")),
            "retries of the cluster",
            "warning",
            ["was not run"],
        ),
    ],
)
def test_something_is_wrong_with_the_stages(run: Ended, subject: str, level: str, facts: list[str]) -> None:
    found = {verdict.subject: verdict for verdict in judge_stages(run, "s3://b/r")}
    assert found[subject].level.value == level
    assert re.search(says(*facts), str(found[subject])), found[subject]


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

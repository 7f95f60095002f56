"""An app as its run: the roles of its pipeline, and the states and lines of their replicas."""

import dataclasses
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kfp import dsl
from torchx import specs

from tests.authoring.apps import HOSTILE
from tests.facts import says
from torchx_kfp import task_from_app
from torchx_kfp.entrypoints.scheduler.app_run import StageRoles, find_replica, lines_of, role_statuses, roles_by_stage
from torchx_kfp.entrypoints.scheduler.request import make_request
from torchx_kfp.entrypoints.scheduler.runopts import Options, read_options
from torchx_kfp.errors import ArgumentError
from torchx_kfp.execution.pipeline.load import load_pipeline, pipeline_from_text
from torchx_kfp.execution.runs.events import StageStarted
from torchx_kfp.execution.runs.result import RunResult, StageResult
from torchx_kfp.execution.runs.vocabulary import State

pytestmark = pytest.mark.versions

BASE = "s3://bucket/results"
ROLES = {
    "train": StageRoles([specs.Role("trainer", "i", num_replicas=2), specs.Role("ps", "i")], is_distributed=True),
    "report": StageRoles([specs.Role("report", "i")]),
}


def app_of(**of_role: Any) -> specs.AppDef:
    role = specs.Role(
        "trainer",
        image="example.com/app:1",
        entrypoint="python",
        args=["-m", "app", "--rate", "0.1"],
        env={"LEVEL": "info", "EMPTY": ""},
        resource=specs.Resource(cpu=2, gpu=1, memMB=2048),
        max_retries=3,
    )
    return specs.AppDef("Train it", [dataclasses.replace(role, **of_role)])


def described(app: specs.AppDef, options: Options) -> list[specs.Role]:
    request = make_request(app, options)
    return [
        role
        for stage in roles_by_stage(pipeline_from_text(request.pipeline), request.arguments).values()
        for role in stage.roles
    ]


def told(role: specs.Role) -> dict[str, Any]:
    """Return the fields of a role that a pipeline tells."""
    names = ("name", "image", "entrypoint", "args", "env", "num_replicas", "max_retries")
    amounts = role.resource.cpu, role.resource.gpu, role.resource.memMB, role.resource.devices
    return {**{name: getattr(role, name) for name in names}, "resource": amounts}


@pytest.mark.parametrize("base", ["", BASE])
def test_a_role_comes_back(base: str) -> None:
    app = app_of()
    [role] = described(app, Options(tracker_base=base))
    assert told(role) == told(app.roles[0])


@pytest.mark.parametrize("base", ["", BASE])
def test_arguments_come_back_byte_for_byte(base: str) -> None:
    app = app_of(args=[*HOSTILE, "", "a b", "$(X) {{y}}"], env={"HOSTILE": "$(X) {{y}} $$ \\ \n"})
    [role] = described(app, Options(tracker_base=base))
    assert (role.args, role.env) == (app.roles[0].args, app.roles[0].env)


def test_no_limits_are_none() -> None:
    [role] = described(app_of(resource=specs.Resource(cpu=-1, gpu=-1, memMB=-1)), Options())
    assert (role.resource.cpu, role.resource.gpu, role.resource.memMB) == (-1, -1, -1)


def test_half_a_cpu_and_other_devices() -> None:
    resource = specs.Resource(cpu=0.5, gpu=0, memMB=64, devices={"example.com/tpu": 2})
    [role] = described(app_of(resource=resource), Options())
    assert (role.resource.cpu, role.resource.memMB, role.resource.devices) == (0.5, 64, {"example.com/tpu": 2})


@pytest.mark.parametrize("base", ["", BASE])
def test_the_roles_of_a_distributed_stage_come_back(base: str) -> None:
    reader = dataclasses.replace(app_of().roles[0], name="reader", args=["--read", "$(X) {{y}}"], env={"A": "1"})
    app = app_of(num_replicas=3, args=["--rank", "${replica_id}"])
    app.roles.append(reader)
    options = dataclasses.replace(read_options({"engine": "jobset"}), tracker_base=base)
    roles = described(app, options)
    assert [(role.name, role.num_replicas, role.image) for role in roles] == [
        ("trainer", 3, "example.com/app:1"),
        ("reader", 1, "example.com/app:1"),
    ]
    assert roles[0].args == ["--rank", "${replica_id}"]
    assert roles[1].args == ["--read", "$(X) {{y}}"]
    assert roles[0].env == {"LEVEL": "info", "EMPTY": ""}
    assert roles[1].env["A"] == "1"
    assert (roles[0].resource.cpu, roles[0].resource.gpu, roles[0].resource.memMB) == (2, 1, 2048)


def test_a_run_that_torchx_has_not_submitted_has_a_role_for_each_stage() -> None:
    @dsl.container_component
    def show(text: str):
        return dsl.ContainerSpec(image="busybox", command=["echo"], args=[text, "--again", text])

    @dsl.pipeline(name="inner")
    def inner(word: str) -> None:
        show(text=word)

    @dsl.pipeline(name="other")
    def other(word: str = "default", more: str = "more") -> None:
        first = show(text=word)
        inner(word=more).after(first)
        with dsl.ParallelFor(["a", "b"]) as item:
            task_from_app(app_of(args=[item]))

    roles = {name: told(stage.roles[0]) for name, stage in roles_by_stage(load_pipeline(other), {"more": "m"}).items()}
    assert {name: (role["name"], role["entrypoint"]) for name, role in roles.items()} == {
        "show": ("show", "echo"),
        "inner/show": ("inner/show", "echo"),
        "train-it": ("train-it", "python"),
    }
    assert roles["show"]["args"] == ["default", "--again", "default"]
    assert roles["inner/show"]["args"] == ["m", "--again", "m"]


def statuses(train: State) -> dict[str, list[tuple[str, str, bool]]]:
    """Return state, host name and whether there is an error, of each replica of each role."""
    reason = "ended with exit code 1 (of KFP's launcher)" if train is State.FAILED else ""
    stages = (
        StageResult("train", "train", train, exit_code=1, reason=reason, pod_name="pod-1"),
        StageResult("report", "report", State.FAILED, exit_code=3, reason="ended with exit code 3", pod_name="pod-2"),
    )
    result = RunResult("app", "id", State.FAILED, None, 1.0, stages)
    return {
        role.role: [(str(one.state), one.hostname, one.structured_error_msg != specs.NONE) for one in role.replicas]
        for role in role_statuses(result, ROLES)
    }


def test_the_failure_of_a_distributed_stage_is_not_that_of_its_replicas() -> None:
    assert statuses(State.FAILED) == {
        "trainer": [("UNKNOWN", "", False)] * 2,
        "ps": [("UNKNOWN", "", False)],
        "train (all replicas)": [("FAILED", "pod-1", True)],
        "report": [("FAILED", "pod-2", True)],
    }


def test_replicas_of_a_stage_that_succeeded_have_succeeded() -> None:
    assert statuses(State.SUCCEEDED)["trainer"] == [("SUCCEEDED", "", False)] * 2


@dataclass
class Growing:
    """A run whose log files grow, and which ends, at each look."""

    folder: Path
    stage: str
    #: The text that each look adds to the files of the attempts.
    looks: list[list[str]]
    fetched: list[set[str]] = field(default_factory=list)

    def read(self) -> Any:
        """Return the run."""
        started = [StageStarted(self.stage, "pod", n, log_file=self.folder / f"{n}.log") for n in (1, 2)]
        return SimpleNamespace(run=SimpleNamespace(attempts={self.stage: started}), is_running=len(self.looks) > 1)

    look = read

    def follow(self) -> Iterator[Any]:
        """Nothing: the lines of a log do not change the run."""
        yield self.read()

    def fetch(self, stages: Collection[str]) -> bool:
        """Write what is new; return True."""
        self.fetched.append(set(stages))
        for number, text in enumerate(self.looks.pop(0) if self.looks else (), 1):
            with (self.folder / f"{number}.log").open("a") as file:
                file.write(text)
        return True


def lines(source: Growing, roles: Any, replica: str, **more: Any) -> list[str]:
    return list(lines_of(source, roles, replica, interval=0, **more))


def test_lines_come_when_they_are_whole_and_the_last_one_at_the_end(tmp_path: Path) -> None:
    source = Growing(tmp_path, "report", [["a\nb"], ["c\n"], [""], ["\td\r\n\ne", "again\n"]])
    found = lines(source, ROLES, "report/0", should_tail=True)
    assert found == ["a\n", "bc\n", "\td\r\n", "\n", "e\n", "again\n"]
    assert source.fetched == [{"report"}] * 4


def test_without_tail_the_lines_so_far(tmp_path: Path) -> None:
    assert lines(Growing(tmp_path, "report", [["a\nb"], ["c\n"]]), ROLES, "report/0") == ["a\n"]


@pytest.mark.parametrize(
    ("replica", "expected"),
    [
        ("trainer/0", ["torchx-kfp: 3 of 3 replicas run\n", "one\n"]),
        ("trainer/1", ["two | three\n", "\r50%\r100%\n"]),
        ("ps/0", ["\n"]),
    ],
)
def test_a_replica_of_a_distributed_stage(tmp_path: Path, replica: str, expected: list[str]) -> None:
    text = (
        "torchx-kfp: 3 of 3 replicas run\ntrainer/0 | one\ntrainer/1 | two | three\nps/0 | \n"
        "trainer/1 | \rtrainer/1 | 50%\rtrainer/1 | 100%\n"
    )
    assert lines(Growing(tmp_path, "train", [[text]]), ROLES, replica) == expected


def test_the_lines_of_one_pod_are_not_taken_for_those_of_replicas(tmp_path: Path) -> None:
    assert lines(Growing(tmp_path, "report[2]", [["report/0 | x\n"]]), ROLES, "report/0") == ["report/0 | x\n"]


def test_unknown_replicas() -> None:
    assert find_replica(ROLES, "trainer", 1) == "trainer/1"
    with pytest.raises(ArgumentError, match=says("'trianer'", "'trainer'", "ps")):
        find_replica(ROLES, "trianer", 0)
    with pytest.raises(ArgumentError, match=says("'trainer'", "replica 2", "2")):
        find_replica(ROLES, "trainer", 2)

"""Commands of stages, in real processes: the application gets exactly the words of the AppDef."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torchx.schedulers import kubernetes_scheduler
from torchx.specs import macros

from tests.authoring.apps import HOSTILE, PLAIN, compile_pipeline, compile_stage, make_app
from tests.authoring.kfp_engines import (
    Container,
    EngineFailure,
    argo,
    container_of,
    containers,
    kubelet,
    launcher,
    tracked_container,
)
from tests.facts import says
from torchx_kfp import local, task_from_app
from torchx_kfp.errors import AppDefError
from torchx_kfp.tracking import current_run

PROTOCOL = ["TORCHX_TRACKER_BASE", "TORCHX_JOB_ID", "TORCHX_PARENT_RUN_ID", "TORCHX_PARENT_RUN_IDS", "TORCHX_TRACKERS"]
PROTOCOL += ["TORCHX_TRACKER_TORCHX_KFP_CONFIG", "KFP_RUN_ID"]
#: The variables of a stage that is named ``train`` and reads nothing.
IDENTITY = {
    "TORCHX_TRACKER_BASE": "/tmp/results",
    "TORCHX_JOB_ID": "run-1/train/pod-7",
    "TORCHX_TRACKERS": "torchx_kfp",
    "TORCHX_TRACKER_TORCHX_KFP_CONFIG": "/tmp/results",
}


def stage_container(tmp: Path, *, tracked: bool = True, options: Any = None, **fields: Any) -> Container:
    """Return the container of a stage whose role has these fields."""
    compiled = compile_stage(make_app(**fields), tracked=tracked, **(options or {}))
    return tracked_container(compiled, "train", tmp / "out")


#: TorchX replaces its macros on purpose. (Hypothesis also draws texts that it has found in the code.)
MACROS = re.compile(r"\$\{(rank0_env|app_id|replica_id|img_root|base_img_root)\}")
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])).filter(
    # Hypothesis also draws constants of the code that it has seen, such as KFP's placeholders, which are filled in.
    lambda it: not MACROS.search(it) and "{{$" not in it and "{{channel" not in it
)
PIECES = st.lists(st.sampled_from("$(){}=\\0bx\n %'é漢"), max_size=8).map("".join)
ARGUMENTS = st.lists(st.sampled_from(HOSTILE + PLAIN) | TEXT | PIECES, max_size=6)


@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(arguments=ARGUMENTS, tracked=st.booleans())
@example(arguments=HOSTILE, tracked=True)
@example(arguments=HOSTILE, tracked=False)
@example(arguments=PLAIN, tracked=True)
@example(arguments=["a"] * 300 + ["$$"] * 30, tracked=True)
def test_arguments_arrive_byte_for_byte(shells: Path, tmp_path: Path, arguments: list[str], tracked: bool) -> None:
    args = ["%s\\0", *arguments, "end"]
    done = stage_container(tmp_path, tracked=tracked, entrypoint="printf", args=args).run(shells)
    assert done.stderr == b""
    assert done.stdout == b"".join(argument.encode() + b"\0" for argument in [*arguments, "end"])
    assert done.returncode == 0


NAMES = st.text(st.characters(exclude_characters="\0=", exclude_categories=["Cs"]), min_size=1).filter(
    # Characters in a name that Argo and the kubelet would change are escaped together with the value.
    lambda name: not name.startswith("-") and name not in {*PROTOCOL, "PATH", "_"}
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(env=st.dictionaries(NAMES, st.sampled_from(HOSTILE + PLAIN) | TEXT, max_size=4), tracked=st.booleans())
@example(env={"OPTIND": "x", "UID": "5", "IFS": "a", "a.b": "1", "my-var": "2", "PS4": "$(id)"}, tracked=True)
@example(env={f"V{index}": value for index, value in enumerate(HOSTILE)}, tracked=True)
@example(env={f"V{index}": value for index, value in enumerate(HOSTILE)}, tracked=False)
def test_variables_arrive_byte_for_byte(shells: Path, tmp_path: Path, env: dict[str, str], tracked: bool) -> None:
    got = stage_container(tmp_path, tracked=tracked, entrypoint="env", args=["-0"], env=env).environment(shells)
    assert {name: got.get(name) for name in env} == env
    # No variables of the script are left, and none that a shell sets for itself.
    assert set(got) - {*env, *PROTOCOL, "PATH", "HOME"} <= {"PWD", "OLDPWD", "SHLVL", "_"}


@pytest.mark.parametrize("word", HOSTILE)
def test_the_engines_of_the_tests_change_what_is_escaped(word: str) -> None:
    """The models are strong enough: without the escapes, none of these words would arrive."""
    if word == "$(UNSET)":
        word = "$(HOME)"
    try:
        arrived = launcher(kubelet(argo(word), {"HOME": "/root"}), {"a": "1"}, {})
    except EngineFailure:
        return
    assert arrived != word or (word.startswith(("{{", "\\")) and "{{" in word)


@pytest.mark.versions
def test_an_untracked_stage_runs_exactly_the_command() -> None:
    """Variables are part of it: KFP's cache key covers the command, but not a container's variables."""
    app = make_app(entrypoint="python", args=["-m", "app", "--lr", "0.1"], env={"A": "1", "B": "x y"})
    found = containers(compile_stage(app, tracked=False))["train"]
    assert found == {"image": "busybox", "command": ["env", "A=1", "B=x y", "python", "-m", "app", "--lr", "0.1"]}
    app.roles[0].env = {}
    assert containers(compile_stage(app, tracked=False))["train"]["command"][0] == "python"


def test_a_tracked_stage_knows_who_it_is(shells: Path, tmp_path: Path) -> None:
    pod = {"KFP_RUN_ID": "run-1", "KFP_POD_NAME": "pod-7"}
    environ = replace(stage_container(tmp_path, entrypoint="env", args=["-0"]), environ=pod).environment(shells)
    assert (tmp_path / "out" / "run_id").read_text() == "run-1/train/pod-7"
    assert {name: value for name, value in environ.items() if name.startswith("TORCHX")} == IDENTITY
    assert current_run({**environ, "TORCHX_TRACKER_BASE": str(tmp_path)}).id == "run-1/train/pod-7"


def test_without_kubernetes_every_execution_has_a_run_id_of_its_own(shells: Path, tmp_path: Path) -> None:
    container = stage_container(tmp_path, entrypoint="true")
    run_ids = set()
    for _ in range(5):
        assert container.run(shells).returncode == 0
        run_ids.add((tmp_path / "out" / "run_id").read_text())
    assert len(run_ids) == 5
    assert all(run_id.split("/")[1] == "train" and len(run_id.split("/")) == 3 for run_id in run_ids)


@pytest.mark.parametrize(
    ("parents", "first"),
    [
        ({"prep": "r/prep/1"}, "r/prep/1"),
        ({"prep": "r/prep/1", "train": "r/train/2"}, "r/prep/1"),
        ({"trials": ["r/train/1", "r/train/2"]}, "r/train/1"),
        ({"trials": ["r/train/1"], "prep": "r/prep/1"}, "r/train/1"),
        ({"trials": []}, None),
        ({'quote": "b': "r/x/1"}, "r/x/1"),
        ({"ünï {{x}} $$ [": "r/x/1"}, "r/x/1"),
    ],
)
def test_parents_in_the_environment(shells: Path, tmp_path: Path, parents: dict[str, Any], first: str | None) -> None:
    container = stage_container(tmp_path, entrypoint="env", args=["-0"], options={"reads": parents})
    environ = container.environment(shells)
    assert json.loads(environ["TORCHX_PARENT_RUN_IDS"]) == parents
    assert environ.get("TORCHX_PARENT_RUN_ID") == first
    run = current_run({**environ, "TORCHX_TRACKER_BASE": str(tmp_path)})
    assert list(run.parents) == list(parents)


def test_the_application_is_the_process_itself(shells: Path, tmp_path: Path) -> None:
    """Signals reach it: there is no process in between, whatever encoding and variables came before."""
    program = (
        "import os, signal, sys, time; signal.signal(15, lambda *_: sys.exit(42)); "
        "print(os.getpid(), flush=True); time.sleep(30)"
    )
    container = stage_container(tmp_path, entrypoint=sys.executable, args=["-c", program, "$$"], env={"A": "$(B)"})
    environ = {"PATH": f"{shells}:{os.environ['PATH']}"}
    with subprocess.Popen(container.argv(), stdout=subprocess.PIPE, env=environ) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) == process.pid
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 42


def test_a_role_may_replace_the_path(shells: Path, tmp_path: Path) -> None:
    """The script's own programs are found through the image's PATH, the application through the role's."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "app").symlink_to(shutil.which("true") or "")
    assert stage_container(tmp_path, entrypoint="app", env={"PATH": str(folder)}).run(shells).returncode == 0


def test_places_with_any_names(shells: Path, tmp_path: Path) -> None:
    base, file = "/tmp/my results/$HOME/'x' `id` *", tmp_path / "a b" / "$HOME" / "c'd" / "run_id"
    container = stage_container(tmp_path, entrypoint="env", args=["-0"])
    container = replace(container, inputs={"tracker_base": base}, outputs={"run_id": str(file)})
    environ = container.environment(shells)
    assert environ["TORCHX_TRACKER_BASE"] == environ["TORCHX_TRACKER_TORCHX_KFP_CONFIG"] == base
    assert file.read_text().count("/") == 2


@pytest.mark.versions
def test_macros_are_replaced() -> None:
    app = make_app("my app", entrypoint="${app_id}")
    app.roles[0].args = ["${app_id}", "${replica_id}", "[${img_root}]", "$app_id", "$${app_id}", "$$5"]
    app.roles[0].args += ["${other}", "$$${rank0_env}", "$ $5 ${"]
    app.roles[0].env = {"RANK0": "${rank0_env}", "X": "a${app_id}b", "TORCHX_JOB_ID": "mine, as it is not tracked"}
    (container,) = containers(compile_stage(app, tracked=False)).values()
    assert container["command"] == [
        *("env", "RANK0=TORCHX_RANK0_HOST", "X=amy appb", "TORCHX_JOB_ID=mine, as it is not tracked"),
        *("TORCHX_RANK0_HOST=localhost", "${app_id}"),
        *("my app", "0", "[]", "my app", "${app_id}", "$5", "${other}", "$TORCHX_RANK0_HOST", "$ $5 ${"),
    ]
    names = [value for value in vars(macros).values() if isinstance(value, str) and value.startswith("${")]
    assert len(names) >= 4, "also those that the installed torchx has added"
    command = containers(compile_stage(make_app(args=names), tracked=False))["train"]["command"]
    assert not [word for word in command if "${" in word]


def test_the_shell_idiom_of_torchx_for_the_host_of_rank_0(tmp_path: Path, shells: Path) -> None:
    """A shell expands ``$${${rank0_env}:=localhost}``, as torchx.components.dist documents."""
    args = ["-c", 'printf "%s " "$${${rank0_env}:=nobody}" "$$${rank0_env}"']
    app = make_app(entrypoint="sh")
    app.roles[0].args = args
    done = tracked_container(compile_stage(app), "train", tmp_path).run(shells)
    assert done.stdout == b"localhost localhost ", done.stderr


@pytest.mark.parametrize("beside", ["日本語\u3000", "a\u00a0b", "\U0001f469\u200d\U0001f4bb", "é\u200b", "\x85\u2028"])
def test_text_of_any_language_may_stand_beside_a_channel(beside: str, shells: Path) -> None:
    """Characters that Argo quotes as \\uXXXX arrive: only its other quotes are not JSON."""

    def pipeline(text: str) -> None:
        task_from_app(make_app(entrypoint="printf", args=["%s", f"{beside}{text}{beside}"]))

    done = container_of(compile_pipeline(pipeline), "train", inputs={"text": "x"}).run(shells)
    assert done.stdout.decode() == f"{beside}x{beside}"


ODD = {"my.var": "a b", "discovery.type": "x=$(y)", "my-var": "", "ok": "1"}


@pytest.mark.parametrize(
    ("field", "option"),
    [
        ({}, {}),
        ({"max_retries": 1}, {}),
        ({}, {"results": {}}),
        ({}, {"may_fail": True}),
        ({}, {"engine": "job"}),
        ({"num_replicas": 2}, {"engine": "job", "results": {}}),
    ],
    ids=str,
)
@pytest.mark.parametrize("code", [None, "code"])
def test_variables_with_names_that_no_shell_passes_on(
    field: dict[str, Any], option: dict[str, Any], code: str | None, tmp_path: Path, shells: Path, monkeypatch: Any
) -> None:
    """Those of Spring and Elasticsearch have dots; dash and busybox drop them."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("")
    program = "import json, os, sys; json.dump(dict(os.environ), open(sys.argv[1], 'w'))"
    found = tmp_path / "environ-${replica_id}"
    app = make_app(entrypoint="python", args=["-c", program, str(found)], env=ODD, **field)

    def pipeline(tracker_base: str, workspace: str = "") -> None:
        task_from_app(app, tracker_base=tracker_base, workspace=workspace, **option)

    monkeypatch.setenv("PATH", f"{shells}:{os.environ['PATH']}")
    folder = code and str(tmp_path / code)
    local.run(pipeline, {"tracker_base": str(tmp_path / "r")}, output_dir=tmp_path / "runs", workspace=folder)
    for index in range(field.get("num_replicas", 1)):
        environ = json.loads(Path(str(found).replace("${replica_id}", str(index))).read_text())
        assert {name: environ.get(name) for name in ODD} == ODD


@pytest.mark.skipif(
    not hasattr(kubernetes_scheduler, "PLACEHOLDER_FIELD_PATH"), reason="this torchx has no variables of fields"
)
def test_a_field_of_the_pod_in_a_variable_that_no_shell_passes_on() -> None:
    app = make_app(env={"my.node": "[FIELD_PATH]spec.nodeName"})
    with pytest.raises(AppDefError, match=says("'my.node'", "field of the pod", "letters")):
        compile_stage(app)

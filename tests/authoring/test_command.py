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

from tests.authoring.apps import HOSTILE, PLAIN, compile_pipeline, make_app
from tests.authoring.kfp_engines import Container, EngineFailure, argo, container_of, containers, kubelet, launcher
from tests.facts import says
from torchx_kfp import task_from_app
from torchx_kfp.authoring import plan as planning
from torchx_kfp.authoring.options import StageSettings
from torchx_kfp.authoring.plan import plan_stage
from torchx_kfp.contract import inputs, protocol
from torchx_kfp.errors import AppDefError
from torchx_kfp.execution.model import checks as product


def stage_container(tmp: Path, compiled: str, name: str = "train", **environ: str) -> Container:
    return container_of(
        compiled,
        name,
        inputs={"tracker_base": "/tmp/results"},
        outputs={"run_id": str(tmp / "out" / "run_id")},
        environ=environ,
    )


def compile_stage(*, tracked: bool, **fields: Any) -> str:
    def pipeline(tracker_base: str = "/tmp/results") -> None:
        task_from_app(make_app(**fields), tracker_base=tracker_base if tracked else None)

    return compile_pipeline(pipeline)


#: TorchX replaces its macros on purpose. (Hypothesis also draws texts that it has found in the code.)
MACROS = re.compile(r"\$\{(rank0_env|app_id|replica_id|img_root|base_img_root)\}")
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])).filter(
    lambda it: not MACROS.search(it)
)
PIECES = st.lists(st.sampled_from("$(){}=\\0bx\n %'é漢"), max_size=8).map("".join)
ARGUMENTS = st.lists(
    st.one_of(
        st.sampled_from(HOSTILE + PLAIN),
        TEXT,
        PIECES,
    ),
    max_size=6,
)


@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(arguments=ARGUMENTS, tracked=st.booleans())
@example(arguments=HOSTILE, tracked=True)
@example(arguments=HOSTILE, tracked=False)
@example(arguments=PLAIN, tracked=True)
@example(arguments=["a"] * 300 + ["$$"] * 30, tracked=True)
def test_arguments_arrive_byte_for_byte(shells: Path, tmp_path: Path, arguments: list[str], tracked: bool) -> None:
    compiled = compile_stage(tracked=tracked, entrypoint="printf", args=["%s\\0", *arguments, "end"])
    done = stage_container(tmp_path, compiled).run(shells)
    assert done.stderr == b""
    assert done.stdout == b"".join(argument.encode() + b"\0" for argument in [*arguments, "end"])
    assert done.returncode == 0


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    env=st.dictionaries(
        st.text(st.characters(exclude_characters="\0=", exclude_categories=["Cs"]), min_size=1).filter(
            lambda name: not name.startswith("-") and name not in {*protocol.VARIABLES, "PATH", "_"}
            # Characters in a name that Argo and the kubelet would change are escaped together with the value.
        ),
        st.one_of(st.sampled_from(HOSTILE + PLAIN), TEXT),
        max_size=4,
    ),
    tracked=st.booleans(),
)
@example(env={"OPTIND": "x", "UID": "5", "IFS": "a", "a.b": "1", "my-var": "2", "PS4": "$(id)"}, tracked=True)
@example(env={f"V{index}": value for index, value in enumerate(HOSTILE)}, tracked=True)
@example(env={f"V{index}": value for index, value in enumerate(HOSTILE)}, tracked=False)
def test_variables_arrive_byte_for_byte(shells: Path, tmp_path: Path, env: dict[str, str], tracked: bool) -> None:
    compiled = compile_stage(tracked=tracked, entrypoint="env", args=["-0"], env=env)
    done = stage_container(tmp_path, compiled).run(shells)
    assert done.returncode == 0, done.stderr
    got = dict(entry.split(b"=", 1) for entry in done.stdout.split(b"\0") if entry)
    assert {name: got.get(name.encode()) for name in env} == {name: value.encode() for name, value in env.items()}
    # No variables of the script are left, and none that a shell sets for itself.
    own = {*(name.encode() for name in [*env, *protocol.VARIABLES]), b"PATH", b"HOME"}
    assert set(got) - own <= {b"PWD", b"OLDPWD", b"SHLVL", b"_"}


@pytest.mark.parametrize("word", HOSTILE)
def test_engines_change_what_is_escaped(word: str) -> None:
    """The models above are strong enough: without the escapes, none of these words would arrive."""
    if word == "$(UNSET)":
        word = "$(HOME)"
    try:
        arrived = launcher(kubelet(argo(word), {"HOME": "/root"}), {"a": "1"}, {})
    except EngineFailure:
        return
    assert arrived != word or (word.startswith(("{{", "\\")) and "{{" in word)


def test_without_the_escapes_arguments_are_changed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(planning, "find_rewritten", lambda _: None)
    monkeypatch.setattr(inputs, "escape", lambda word: word.replace("\\", r"\0134"))
    compiled = compile_stage(tracked=True, entrypoint="printf", args=["%s\\0", "$$", "$(HOME)", "{{workflow.name}}"])
    done = stage_container(tmp_path, compiled).run()
    assert done.stdout == b"$\0/root\0<workflow.name>\0"


@given(word=st.one_of(TEXT, PIECES, st.sampled_from(HOSTILE + PLAIN)))
@example("$é")
@example("$(é")
@example("$(HOME$)$(x)$")
def test_the_kubelet_of_the_package_and_that_of_the_tests_agree(word: str) -> None:
    environ = {"HOME": "/root", "": "nothing", "$": "$(HOME)", "x": "é"}
    assert product.expand(word, environ) == os.fsencode(kubelet(word, environ))


def test_the_kubelet_as_it_was_seen() -> None:
    assert product.expand("$é", {}) == b"$\xc3\x83\xa9"
    assert product.expand("a $$ $(HOME) $(UNSET) $( $", {"HOME": "/root"}) == b"a $ /root $(UNSET) $( $"


@given(TEXT)
def test_escaped_text_has_nothing_left_to_rewrite(value: str) -> None:
    escaped = inputs.escape(value)
    assert inputs.find_rewritten(escaped) is None
    decoded = re.sub(rb"\\0(\d{3})", lambda found: bytes([int(found[1], 8)]), escaped.encode())
    assert decoded == value.encode()


@pytest.mark.versions
def test_an_untracked_stage_runs_exactly_the_command() -> None:
    compiled = compile_stage(tracked=False, entrypoint="python", args=["-m", "app", "--lr", "0.1"])
    assert containers(compiled)["train"] == {"image": "busybox", "command": ["python", "-m", "app", "--lr", "0.1"]}


def test_variables_are_part_of_the_command() -> None:
    """KFP's cache key covers the command, but not a container's variables."""
    compiled = compile_stage(tracked=False, entrypoint="python", args=["app.py"], env={"A": "1", "B": "x y"})
    assert containers(compiled)["train"]["command"] == ["env", "A=1", "B=x y", "python", "app.py"]


def test_a_tracked_stage_knows_who_it_is(shells: Path, tmp_path: Path) -> None:
    compiled = compile_stage(tracked=True, entrypoint="env", args=["-0"])
    container = stage_container(tmp_path, compiled, **{protocol.PIPELINE_RUN: "run-1", protocol.POD_NAME: "pod-7"})
    done = container.run(shells)
    environ = dict(entry.split("=", 1) for entry in done.stdout.decode().split("\0") if entry)
    assert (tmp_path / "out" / "run_id").read_text() == "run-1/train/pod-7"
    context = protocol.StageContext("/tmp/results", "run-1/train/pod-7")
    assert {name: environ.get(name) for name in protocol.VARIABLES if name in environ} == protocol.encode(context)
    assert protocol.decode(environ) == context


def test_without_kubernetes_every_execution_has_a_run_id_of_its_own(shells: Path, tmp_path: Path) -> None:
    container = stage_container(tmp_path, compile_stage(tracked=True, entrypoint="true"))
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
        ({"trials": ("r/train/1", "r/train/2")}, "r/train/1"),
        ({"trials": ("r/train/1",), "prep": "r/prep/1"}, "r/train/1"),
        ({"trials": ()}, None),
        ({'quote": "b': "r/x/1"}, "r/x/1"),
        ({"ünï {{x}} $$ [": "r/x/1"}, "r/x/1"),
    ],
)
def test_parents_in_the_environment(shells: Path, tmp_path: Path, parents: dict[str, Any], first: str | None) -> None:
    """The shell finds the same first parent as the protocol's own encoder."""

    def pipeline(tracker_base: str = "/tmp/results") -> None:
        reads = {alias: ids if isinstance(ids, str) else list(ids) for alias, ids in parents.items()}
        task_from_app(make_app(entrypoint="env", args=["-0"]), tracker_base=tracker_base, reads=reads)

    done = stage_container(tmp_path, compile_pipeline(pipeline)).run(shells)
    environ = dict(entry.split("=", 1) for entry in done.stdout.decode().split("\0") if entry)
    assert protocol.decode(environ).parents == parents
    assert environ.get(protocol.PARENT_RUN_ID) == first == protocol.first_run_id(parents)


def test_a_fan_in_as_every_engine_writes_lists(shells: Path, tmp_path: Path) -> None:
    def pipeline(ids: list, tracker_base: str = "/tmp/results") -> None:
        task_from_app(make_app(entrypoint="env", args=["-0"]), tracker_base=tracker_base, reads={"trials": ids})

    compiled = compile_pipeline(pipeline)
    for text_of_list in (json.dumps(["r/a/1", "r/b/2"]), '["r/a/1","r/b/2"]'):
        container = stage_container(tmp_path, compiled)
        container = replace(container, inputs={**container.inputs, "trials": text_of_list})
        environ = dict(entry.split("=", 1) for entry in container.run(shells).stdout.decode().split("\0") if entry)
        assert protocol.decode(environ).parents == {"trials": ("r/a/1", "r/b/2")}
        assert environ[protocol.PARENT_RUN_ID] == "r/a/1"


def test_the_exit_code_is_the_applications(shells: Path, tmp_path: Path) -> None:
    for code in (0, 1, 7, 255):
        compiled = compile_stage(tracked=True, entrypoint="sh", args=["-c", f"exit {code}"])
        assert stage_container(tmp_path, compiled).run(shells).returncode == code


def test_a_missing_program_is_named(shells: Path, tmp_path: Path) -> None:
    done = stage_container(tmp_path, compile_stage(tracked=True, entrypoint="no-such-program")).run(shells)
    assert done.returncode == 127
    assert b"no-such-program" in done.stderr


def test_the_application_is_the_process_itself(shells: Path, tmp_path: Path) -> None:
    """Signals reach it: there is no process in between, whatever encoding and variables came before."""
    program = (
        "import os, signal, sys, time; signal.signal(15, lambda *_: sys.exit(42)); "
        "print(os.getpid(), flush=True); time.sleep(30)"
    )
    compiled = compile_stage(tracked=True, entrypoint=sys.executable, args=["-c", program, "$$"], env={"A": "$(B)"})
    container = stage_container(tmp_path, compiled)
    environ = {"PATH": f"{shells}:{os.environ['PATH']}"}
    with subprocess.Popen(container.argv(), stdout=subprocess.PIPE, env=environ) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) == process.pid
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == 42


def test_a_role_may_replace_the_path(shells: Path, tmp_path: Path) -> None:
    """The script's own programs are found through the image's PATH, the application through the role's."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "app").symlink_to(shutil.which("true") or "")
    compiled = compile_stage(tracked=True, entrypoint="app", env={"PATH": str(folder)})
    assert stage_container(tmp_path, compiled).run(shells).returncode == 0


def test_an_image_that_ends_stages_with_their_folder_missing(shells: Path, tmp_path: Path) -> None:
    compiled = compile_stage(tracked=True, entrypoint="true")
    container = container_of(
        compiled,
        "train",
        inputs={"tracker_base": "/tmp/results"},
        outputs={"run_id": str(tmp_path / "a b" / "$HOME" / "c'd" / "run_id")},
    )
    assert container.run(shells).returncode == 0
    assert (tmp_path / "a b" / "$HOME" / "c'd" / "run_id").read_text().count("/") == 2


def test_a_tracker_base_with_spaces_and_signs(shells: Path, tmp_path: Path) -> None:
    container = stage_container(tmp_path, compile_stage(tracked=True, entrypoint="env", args=["-0"]))
    base = "/tmp/my results/$HOME/'x' `id` *"
    done = replace(container, inputs={"tracker_base": base}).run(shells)
    environ = dict(entry.split("=", 1) for entry in done.stdout.decode().split("\0") if entry)
    assert environ[protocol.TRACKER_BASE] == environ[protocol.TRACKER_CONFIG] == base


@pytest.mark.parametrize("tracked", [True, False])
def test_scripts_hold_nothing_that_engines_rewrite(tracked: bool) -> None:
    plan = plan_stage(
        make_app(args=["$$"]),
        StageSettings(tracker_base=("/tmp",), sources={"a": "r/a/1"}) if tracked else StageSettings(),
    )
    script = plan.command[plan.command.index("-ec") + 1]
    assert inputs.find_rewritten(script) is None
    assert argo(script) == kubelet(script, {"0": "x", "1": "y"}) == script


@pytest.mark.versions
def test_macros() -> None:
    app = make_app(
        "my app",
        args=["${app_id}", "${replica_id}", "[${img_root}]", "$app_id", "$${app_id}", "${other}", "${rank0_env}"],
        env={"RANK0": "${rank0_env}", "X": "a${app_id}b"},
        entrypoint="${app_id}",
    )
    assert plan_stage(app).command == (
        "env",
        "RANK0=TORCHX_RANK0_HOST",
        "X=amy appb",
        "TORCHX_RANK0_HOST=localhost",
        "${app_id}",
        *("my app", "0", "[]", "$app_id", "$my app", "${other}", "TORCHX_RANK0_HOST"),
    )


@pytest.mark.versions
def test_every_macro_of_the_installed_torchx_is_replaced() -> None:
    from torchx.specs import macros

    names = [value for name, value in vars(macros).items() if isinstance(value, str) and value.startswith("${")]
    assert len(names) >= 4
    command_line = plan_stage(make_app(args=names)).command
    assert not [word for word in command_line if "${" in word]


@pytest.mark.parametrize("name", [*protocol.VARIABLES, protocol.PIPELINE_RUN])
def test_the_protocols_variables_are_not_the_apps(name: str) -> None:
    app = make_app(env={name: "mine"})
    assert f"{name}=mine" in plan_stage(app).command
    with pytest.raises(AppDefError, match=says("env", "'trainer'", name)):
        plan_stage(app, StageSettings(tracker_base=("/tmp",)))


def test_the_shell_idiom_of_torchx_for_the_host_of_rank_0(tmp_path: Path, shells: Path) -> None:
    """A shell expands ``$${${rank0_env}:=localhost}``, as torchx.components.dist documents."""
    fields = {"entrypoint": "sh", "args": ["-c", 'printf %s "$${${rank0_env}:=nobody}" "$${rank0_env}"']}
    done = stage_container(tmp_path, compile_stage(tracked=True, **fields)).run(shells)
    assert done.stdout.startswith(b"localhost"), done.stderr


def test_an_argument_that_is_too_long_once_it_is_escaped() -> None:
    with pytest.raises(AppDefError, match=says("149996 bytes", "131071 bytes in one argument", "Put")):
        compile_stage(tracked=True, args=["{" * 30_000])
    with pytest.raises(AppDefError, match=says("env['X']", "131073", "'trainer'", "Put")):
        compile_stage(tracked=True, env={"X": "x" * 131_071})


@pytest.mark.parametrize("beside", ["日本語\u3000", "a\u00a0b", "\U0001f469\u200d\U0001f4bb", "é\u200b", "\x85\u2028"])
def test_text_of_any_language_may_stand_beside_a_channel(beside: str, tmp_path: Path, shells: Path) -> None:
    """Characters that Argo quotes as \\uXXXX arrive: only its other quotes are not JSON."""

    def pipeline(text: str) -> None:
        task_from_app(make_app(entrypoint="printf", args=["%s", f"{beside}{text}{beside}"]))

    container = Container(
        containers(compile_pipeline(pipeline))["train"]["command"],
        inputs={"text": "x"},
        outputs={},
        environ={},
    )
    assert container.run(shells).stdout.decode() == f"{beside}x{beside}"

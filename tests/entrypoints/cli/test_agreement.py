"""``check``, ``run``, ``submit`` and their dry runs agree on what is refused."""

from pathlib import Path

import pytest
from kfp import compiler, dsl, kubernetes

from tests.cases.parts import echo
from tests.programs import Program

HOST = ("--host", "http://127.0.0.1:9")


@dsl.container_component
def concat(text: str):
    return dsl.ContainerSpec(image="busybox", command=["echo"], args=[dsl.ConcatPlaceholder(["--text=", text])])


@dsl.pipeline
def works_here():
    concat(text="a")


@dsl.pipeline
def has_an_image_with_text(tag: str = "1"):
    @dsl.container_component
    def tagged(tag: str):
        return dsl.ContainerSpec(image=f"app:{tag}", command=["true"])

    tagged(tag=tag)


#: What check, run --dry-run, run, and submit --dry-run end with.
ENDS = [(has_an_image_with_text, (2, 2, 2, 2)), (works_here, (0, 0, 0, 2))]


@pytest.mark.parametrize(("pipeline", "ends"), ENDS, ids=lambda value: getattr(value, "name", ""))
def test_commands_agree(pipeline, ends: tuple[int, ...], call: Program, tmp_path: Path) -> None:
    compiler.Compiler().compile(pipeline, str(tmp_path / "p.yaml"))
    words = (["check"], ["run", "--dry-run"], ["run"], ["submit", "--dry-run", *HOST])
    done = [call(command[0], "p.yaml", *command[1:]) for command in words]
    assert tuple(each.returncode for each in done) == ends, [each.stderr for each in done]


def test_a_missing_argument_is_named(call: Program, tmp_path: Path) -> None:
    @dsl.pipeline
    def pipeline(text: str, rate: float, size: int = 1):
        echo(text=text)

    compiler.Compiler().compile(pipeline, str(tmp_path / "p.yaml"))
    checked = call("check", "p.yaml", "-p", "rate=0.1")
    assert (checked.returncode, checked.stderr) == (0, "pipeline: 0 findings.\nA run needs -p text=VALUE.\n")
    assert call("run", "p.yaml", "--dry-run").returncode == 2


def test_what_a_run_does_not_apply_is_a_note(call: Program, tmp_path: Path) -> None:
    @dsl.pipeline
    def pipeline():
        kubernetes.mount_pvc(echo(text="a"), pvc_name="data", mount_path="/no/data")

    compiler.Compiler().compile(pipeline, str(tmp_path / "p.yaml"))
    checked = call("check", "p.yaml", "--strict")
    volume = "the volume claim 'data' (make the directory /no/data, or use --docker)"
    note = f"A local run does not apply: {volume}.\n"
    assert (checked.returncode, checked.stderr) == (0, f"pipeline: 0 findings.\n{note}")

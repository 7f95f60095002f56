"""``max_retries`` in runs on this machine; ``tests/cases/results.py`` has what attempts record."""

from collections.abc import Callable

from kfp import dsl, kubernetes
from torchx.specs import AppDef, Role

from torchx_kfp import task_from_app
from torchx_kfp.local import RunResult

Execute = Callable[..., RunResult]


def test_what_an_application_leaves_behind_is_asked_to_end(execute_failing: Execute) -> None:
    child = "trap 'echo child asked; exit' TERM; sleep 300 & wait"
    script = f"trap 'echo asked; exit 3' TERM; sh -c \"{child}\" & wait"

    @dsl.pipeline
    def pipeline():
        role = Role("trainer", "image:1", entrypoint="sh", args=["-c", script], max_retries=1)
        kubernetes.set_timeout(task_from_app(AppDef("train", [role])), 1)

    stage = execute_failing(pipeline, grace=5)["train"]
    assert (stage.exit_code, stage.last_lines()) == (3, ["asked", "child asked"])

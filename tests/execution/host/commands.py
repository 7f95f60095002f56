"""Pipelines for the commands that work on a host, and what they print."""

# Annotations are not postponed: kfp reads them as types.

from pathlib import Path

from kfp import compiler, dsl, kubernetes

from tests.cases.apps import python
from torchx_kfp import task_from_app

_RECORD = """
import sys
from torchx_kfp.tracking import current_run
print("training with", sys.argv[1], flush=True)
current_run().put(loss=float(sys.argv[1]))
"""


@dsl.container_component
def script(text: str):
    return dsl.ContainerSpec(image="app:1", command=["sh", "-c", text])


def write_pipelines(folder: Path, base: Path) -> None:
    """Write the pipelines, compiled, into a folder.

    Args:
        folder: the folder.
        base: the tracker base of the pods: their stages have a volume there, which this machine has as a directory.
    """

    @dsl.pipeline(name="good")
    def good(tracker_base: str, lr: float = 0.5, names: list = ["a", "b"]):  # noqa: B006 (KFP takes the text of defaults)
        train = task_from_app(python("train", _RECORD, f"{lr}"), tracker_base=tracker_base)
        kubernetes.mount_pvc(train, "claim", str(base))
        with dsl.ParallelFor(names) as name:
            del name
            evaluate = task_from_app(python("evaluate", _RECORD, "2"), tracker_base=tracker_base, reads=train)
            kubernetes.mount_pvc(evaluate, "claim", str(base))
        with dsl.If(lr > 1):
            script(text="echo never").after(train)

    @dsl.pipeline(name="bad")
    def bad():
        first = script(text="echo one; printf '\\033[31mthe last line\\033[0m\\n'; exit 7")
        script(text="echo never").after(first)

    @dsl.pipeline(name="plain")
    def plain(word: str = "hi", count: int = 1):
        script(text=f"echo {word} {count}")

    @dsl.pipeline(name="distributed")
    def distributed():
        code = "import os; print('of', os.environ['TORCHX_NUM_REPLICAS'])"
        task_from_app(python("train", code, num_replicas=2), engine="job")

    @dsl.pipeline(name="inner")
    def inner(text: str):
        script(text=text)

    @dsl.pipeline(name="lost")
    def lost(lr: float = 0.1):
        inner(text=f"one-{lr}")

    @dsl.pipeline(name="long")
    def long(go: str):
        script(text=f"echo begun; while [ ! -e {go} ]; do sleep 0.05; done; echo over").set_caching_options(False)

    for pipeline in (good, bad, plain, distributed, lost, long):
        compiler.Compiler().compile(pipeline, str(folder / f"{pipeline.name}.yaml"))
    (folder / "plain.py").write_text(
        "from kfp import dsl\n\n"
        "@dsl.container_component\ndef script(text: str):\n"
        "    return dsl.ContainerSpec(image='app:1', command=['sh', '-c', text])\n\n"
        "@dsl.pipeline(name='plain')\ndef plain(word: str = 'hi', count: int = 1):\n"
        "    script(text=f'echo {word} {count}')\n",
        encoding="utf-8",
    )


def rows(text: str) -> list[list[str]]:
    """Return the cells of a table that was printed."""
    lines = text.splitlines()
    start = next(number for number, line in enumerate(lines) if set(line) == {"─"})
    found = []
    for line in lines[start + 1 :]:
        if not line.strip() or ": " in line:  # a message, in a terminal
            break
        found.append([cell.strip() for cell in line.split("   ") if cell.strip()])
    return found

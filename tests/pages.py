"""The code of a documentation page, run like by a reader who follows it from top to bottom.

- A Python block that begins with ``# name.py`` is a file.
- A Python block that begins with ``# inside a pipeline`` is part of a pipeline, which must compile.
- The other Python blocks of a page are one program, in the environment of a stage that reads two others.
- In a console block, ``$ command`` is run if it is one of ``PROGRAMS``. If output follows, the command must print it;
  ``...`` matches any text, and ids, times and durations may differ.
- A shell block is a script, which also runs in the environment of a stage.

``<!-- files: other.md -->`` adds the files of another page to the page's own. ``<!-- not run: reason -->`` exempts the
next block. ``<!-- host -->`` gives the page's commands a KFP host that runs what they submit, and its S3 store: see
``pages_host``. Readers see none of them.

A host makes other ids each time: a command that names a run by its id on the page gets the real one.

``python -m tests.pages [PAGE...]`` rewrites outputs that differ from those of the commands, and then all run ids.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator, Set
from dataclasses import dataclass, replace
from pathlib import Path

from tests.pages_host import NOTHING, Around, cluster
from tests.programs import Program, imported
from torchx_kfp.tracking import FsspecResultTracker
from torchx_kfp.tracking.artifacts import add_artifact

REPOSITORY = Path(__file__).parent.parent
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
#: The programs that are run in console blocks. Others need an index, a cluster or an engine, and only their names are
#: checked.
PROGRAMS = {"torchx-kfp", "python", "cat", "echo", "cp", "ls", "sed"}
OTHERS = {"pip", "make", "git", "docker", "kubectl", "mlflow", "torchx", "export", "uv", "cd"}

#: The folder that readers see in pages.
HOME = "/home/you/project"
IN_PIPELINE = "# inside a pipeline"

_BLOCK = re.compile(r"^(?P<indent> *)```(?P<language>\w+)\n(?P<text>.*?)^(?P=indent)```$", re.DOTALL | re.MULTILINE)
_STORAGE = re.compile(r"export (TORCHX_KFP_STORAGE_\w+)=(.+)")
_ASSIGNMENT = re.compile(r"[A-Z_]+=")
_FILE = re.compile(r"# ([\w/]+\.py)\n")
_SECTIONS = re.compile(r"<!-- files: (\S+) -->")
_HOST = "<!-- host -->\n"
_EXEMPT = re.compile(r"<!-- not run: .+ -->\s*\Z")
#: The text before the parts of a pipeline.
_PIPELINE = """
from kfp import dsl
from torchx.specs import AppDef, Role
from torchx_kfp import Stages, artifact_from_uri, hpo, publish_results, task_from_app

app = AppDef("train", [Role("train", image="example.com/app:1", entrypoint="python")])
other_app = AppDef("deploy", [Role("deploy", image="example.com/app:1", entrypoint="python")])


@dsl.container_component
def deploy(model: dsl.Input[dsl.Model]):
    return dsl.ContainerSpec(image="busybox", command=["cat", model.path])


@dsl.pipeline(name="parts")
def parts(tracker_base: str, rate: float = 0.1):
    stages = Stages(tracker_base=tracker_base)
"""
_ID = r"\d{8}-\d{6}-[0-9a-f]{6}"
#: The id of a run on a host, the length of its beginning that names it, and the names of its pods, with their UIDs.
_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_BEGINNING = 8
_POD = r"\b([a-z-]+-)[a-z0-9]{5}(-[a-z-]+-)\d{6,10}(?:_[0-9a-f]{8})?\b"
_TIME = r"\d{4}-\d{2}-\d{2} \d{2}[:-]\d{2}(?:[:-]\d{2})?(?: \+0000)?"
#: Text that differs from one run to the next, and its replacements.
_CHANGING = {
    _ID: "<id>",
    _POD: r"\1<workflow>\2<node>",
    _TIME: "<time>",
    r"\b(\d+h ?)?(\d+m ?)?\d+(\.\d+)? ?s\b": "<duration>",
    r"((?<=succeeded)|(?<=failed)|(?<=\(allowed\)))\s+(\d+ +)?[\d.]+\b": "<duration>",
    r" host +\S+| on \S+$": " <host>",
    r"─+": "<line>",
    r"[ \t]+": " ",
}


@dataclass(frozen=True)
class Block:
    """A block of code in a page, which begins at ``line``."""

    language: str
    text: str
    line: int


@dataclass(frozen=True)
class Command:
    """A command in a console block, and its output in the page."""

    line: str
    output: str
    #: The line as in the page.
    source: str


def blocks(page: Path) -> Iterator[Block]:
    """Yield the page's blocks of code that are not exempt."""
    text = page.read_text(encoding="utf-8")
    for found in _BLOCK.finditer(text):
        if not _EXEMPT.search(text[: found.start()]):
            yield Block(found["language"], textwrap.dedent(found["text"]), text[: found.start()].count("\n") + 1)


def is_part(block: Block) -> bool:
    """Return whether a Python block is a file or part of a pipeline, rather than a program."""
    return bool(_FILE.match(block.text)) or block.text.startswith(IN_PIPELINE)


def pipeline(page: Path) -> str:
    """Return a file with a pipeline that consists of the page's blocks, after definitions that all of them may use."""
    parts = [block.text for block in blocks(page) if block.language == "python" and block.text.startswith(IN_PIPELINE)]
    return _PIPELINE + textwrap.indent("\n".join(parts), "    ") if parts else ""


def anchors(page: Path) -> set[str]:
    """Return the anchors of the page's headings, as GitHub and Sphinx name them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def write_files(page: Path, folder: Path) -> None:
    """Write the files that the page shows, and those of pages whose files it uses."""
    for other in _SECTIONS.findall(page.read_text(encoding="utf-8")):
        write_files((page.parent / other).resolve(), folder)
    for block in blocks(page):
        named = _FILE.match(block.text) if block.language == "python" else None
        if named:
            (folder / named[1]).parent.mkdir(parents=True, exist_ok=True)
            (folder / named[1]).write_text(block.text, encoding="utf-8")


def commands(block: Block) -> Iterator[Command]:
    """Yield the commands of a console block."""
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        line, _, output = part.partition("\n")
        source = f"$ {line}"
        while line.endswith("\\"):
            more, _, output = output.partition("\n")
            line, source = line[:-1] + more.lstrip(), f"{source}\n{more}"
        yield Command(line.split("  #")[0].rstrip(), output.strip("\n"), source)


def stage_environment(folder: Path) -> dict[str, str]:
    """Return the environment of a stage that reads ``prepare`` and the fan-in ``trials``: they have records."""
    for stage, results in {"prepare": {"rows": 1000, "accuracy": 0.5}, "train": {"loss": 0.04}}.items():
        (folder / "run" / stage).mkdir(parents=True, exist_ok=True)
        (folder / "run" / stage / "1").write_text(json.dumps(results))
    made = folder.parent / "checkpoint"
    made.mkdir(exist_ok=True)
    (made / "model.bin").write_bytes(bytes(1000))
    for artifact, path in {"model": made / "model.bin", "checkpoint": made}.items():
        add_artifact(FsspecResultTracker(folder).store, "run/prepare/1", artifact, path, None, stored=True)
    return {
        **os.environ,
        "TORCHX_TRACKER_BASE": str(folder),
        "TORCHX_JOB_ID": "run/this/1",
        "TORCHX_PARENT_RUN_ID": "run/prepare/1",
        "TORCHX_PARENT_RUN_IDS": '{"prepare": "run/prepare/1", "trials": ["run/train/1"]}',
    }


@dataclass(frozen=True)
class Printed:
    """A command's output, and its exit code."""

    stdout: str
    stderr: str
    code: int


def run(command: str, program: Program, around: Around = NOTHING) -> Printed:
    """Run a line like a shell in the program's folder does."""
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = {**program.variables, **around.environ, "PATH": programs, "TZ": "UTC", "COLUMNS": "80"}
    done = replace(program, variables=variables).shell(around.really(command))
    texts = (around.shown(text).replace(str(program.folder), HOME) for text in (done.stdout, done.stderr))
    return Printed(*texts, done.returncode)


def comparable(text: str) -> str:
    """Return the text without parts that differ from one run to the next."""
    for pattern, name in _CHANGING.items():
        text = re.sub(pattern, name, text, flags=re.MULTILINE)
    return "\n".join(line.strip() for line in text.strip().splitlines())


def agrees(said: str, printed: Printed) -> bool:
    """Return whether a page's output is the command's output: its results, its messages, or both."""
    return not said or _shown(said, printed) is not None


def _shown(said: str, printed: Printed) -> str | None:
    """Return the part of the printed output that the page shows; None if it shows something else."""
    pattern = re.escape(comparable(said)).replace(re.escape("..."), "(?s:.*)")
    texts = (printed.stdout, printed.stderr, printed.stdout + printed.stderr)
    return next((text for text in texts if re.fullmatch(pattern, comparable(text))), None)


def updated(said: str, printed: Printed) -> str:
    """Return a page's output with the printed ids and times; everything else is unchanged."""
    shown = _shown(said, printed) or ""
    for pattern in (_ID, _TIME):
        found, *rest = re.split(f"({pattern})", said)
        new = re.findall(pattern, shown)
        if len(new) == len(rest) // 2:
            said = found + "".join(map("".join, zip(new, rest[1::2], strict=True)))
    return said


def run_commands(
    page: Path, program: Program, programs: Set[str] = PROGRAMS, around: Around = NOTHING
) -> Iterator[tuple[Command, Printed]]:
    """Run the page's commands of some programs with the page's files; yield them with their output.

    Raises:
        ValueError: the page has a command that is not known.
    """
    folder = program.folder
    write_files(page, folder)
    has_host = _HOST in page.read_text(encoding="utf-8")
    with cluster(folder) if has_host else contextlib.nullcontext(around) as around:
        for block in blocks(page):
            for command in commands(block) if block.language == "console" else ():
                name = next(word for word in shlex.split(command.line) if not _ASSIGNMENT.match(word))
                if name in programs:
                    if "torchx-kfp run " in command.line:
                        _wait_for_another_second(folder)
                    printed = run(command.line, program, around)
                    around = with_ids(around, command.output, printed)
                    yield command, Printed(around.shown(printed.stdout), around.shown(printed.stderr), printed.code)
                elif name == "export" and (found := _STORAGE.fullmatch(command.line)):
                    around = replace(around, environ={**around.environ, found[1]: shlex.split(found[2])[0]})
                elif name not in PROGRAMS | OTHERS:
                    raise ValueError(f"{page.name}:{block.line}: {name!r} is not among PROGRAMS and OTHERS.")


def _wait_for_another_second(folder: Path) -> None:
    """Wait until another run on this machine would be listed after those before: ids of one second have any order."""
    before = [path.name.rpartition("-")[0] for path in (folder / "local_outputs").glob("*-*")]
    while any(name.endswith(time.strftime("%Y%m%d-%H%M%S", time.gmtime())) for name in before):
        time.sleep(0.02)


def with_ids(around: Around, said: str, printed: Printed) -> Around:
    """Return what is around, with the real ids of the runs that this output of the page is the first to name."""
    known = around.addresses
    new = [one for one in dict.fromkeys(re.findall(_UUID, said)) if one not in known]
    texts = printed.stdout + printed.stderr
    made = [one for one in dict.fromkeys(re.findall(_UUID, texts)) if one not in known.values()]
    pairs = dict(zip(new, made, strict=False))
    # Commands may also name a run by the beginning of its id.
    beginnings = {one[:_BEGINNING]: real[:_BEGINNING] for one, real in pairs.items()}
    return replace(around, addresses={**known, **pairs, **beginnings})


def main() -> None:
    """Rewrite the outputs in pages that differ from those of the commands."""
    for page in [Path(name).resolve() for name in sys.argv[1:]] or PAGES:
        text = page.read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder, imported() as server:
            outputs = list(run_commands(page, Program(server, Path(folder))))
        is_right = all(agrees(it.output, printed) for it, printed in outputs)
        for command, printed in outputs if not is_right else ():
            if agrees(command.output, printed):
                shown = updated(command.output, printed)
            else:
                shown = printed.stdout or printed.stderr
                shown = "\n".join(line.rstrip() for line in shown.strip().splitlines())
            text = text.replace(f"{command.source}\n{command.output}\n", f"{command.source}\n{shown}\n")
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

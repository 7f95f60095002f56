"""Commands as a user types them, with their exact output: the sections of the Markdown files in this folder.

A section (``## what is shown``) is a test in a folder of its own. Its console blocks have commands after ``$``, and
what they print: stdout, then each line of stderr after ``! ``, then ``[exit 1]`` if the exit code is 1; a code that is
not shown is 2 after a line ``! Error: ``, and 0 after others. ``...`` is any text within a line; run ids, times,
durations and the folder are written as ``<id>``, ``<time>``, ``<duration>`` and ``<folder>``. In a section, or above
the first one, ``<!-- given: NAME -->`` calls the function of that name in ``given`` with the folder first, which may
return a context such as a running host. A block ``python FILE`` is a file of the folder. Variables may stand before a
command; with ``WIDTH=60``, it runs in a terminal of this width. The usage that click prints above an error, and the
indentation of JSON, are left out. The commands of a section run one after the other, ``torchx-kfp`` in a fork and
others in a shell.

``python -m tests.transcripts [FILE...]`` rewrites the outputs that differ.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import socket
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tests.pages_host import NOTHING, Around
from tests.programs import Program, imported
from tests.transcripts import given

FOLDER = Path(__file__).parent
_SECTION = re.compile(r"^## (.+)\n", re.MULTILINE)
_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"^```\w+ (\S+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_GIVEN = re.compile(r"<!-- given: (.+) -->")
_WIDTH = re.compile(r"WIDTH=(\d+) (.*)", re.DOTALL)
_USAGE = re.compile(r"^Usage: .*\n(?:  .*\n)*Try .* for help\.\n\n(?=Error: )", re.MULTILINE)
#: Text that differs from one run to the next, in the order in which it is replaced.
_CHANGING = {
    rf"\b{re.escape(socket.gethostname())}\b": "<host>",  # a short name may also stand within a random one
    r"\d{8}-\d{6}-[0-9a-f]{6}": "<id>",
    r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}": "<id>",
    r"\b\d{19}-[0-9a-f]{8}\b": "<id>",
    r"\b[a-z]+-[a-z0-9]{5}-system-container-impl-\d+(?:_[0-9a-f]{8})?": "<pod>",
    r"\b1[5-9]\d{8}\.\d+\b": "<time>",
    r"\d{4}-\d{2}-\d{2}[ T]\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?: ?\+00:?00)?": "<time>",
    r"\b(?:\d+ h )?(?:\d+ min )?\d+(?:\.\d+)? s\b": "<duration>",
}


@dataclass(frozen=True)
class Command:
    """A command of a section, and the output that the file shows."""

    line: str
    output: str


@dataclass(frozen=True)
class Section:
    """A test: its title, the names of what it is given, the contents of files by their names, and its commands."""

    file: Path
    title: str
    given: tuple[str, ...]
    files: tuple[tuple[str, str], ...]
    commands: tuple[Command, ...]

    def __str__(self) -> str:
        return f"{self.file.stem}: {self.title}"


def sections(file: Path) -> Iterator[Section]:
    """Yield the sections of a file."""
    before, *parts = _SECTION.split(file.read_text(encoding="utf-8"))
    for title, text in zip(parts[::2], parts[1::2], strict=True):
        names = tuple(name for found in _GIVEN.findall(before) + _GIVEN.findall(text) for name in found.split())
        commands = (command for block in _BLOCK.findall(text) for command in _commands(block))
        yield Section(file, title, names, tuple(_FILE.findall(before + text)), tuple(commands))


def _commands(block: str) -> Iterator[Command]:
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        line, _, output = part.partition("\n")
        while line.endswith("\\"):
            more, _, output = output.partition("\n")
            line = f"{line}\n{more}"
        yield Command(line, output)


def play(section: Section, program: Program) -> Iterator[tuple[Command, str]]:
    """Yield the commands of a section with what they print, in the form of the file."""
    folder = program.folder
    with contextlib.ExitStack() as stack:
        around = NOTHING
        for name in section.given:
            found = getattr(given, name)(folder)
            around = around if found is None else stack.enter_context(found)
        for name, content in section.files:
            (folder / name).write_text(content, encoding="utf-8")
        for command in section.commands:
            yield command, _run(command.line.replace("\\\n", ""), program, around)


def _run(line: str, program: Program, around: Around) -> str:
    path, folder = f"{Path(sys.executable).parent}:{os.environ['PATH']}", program.folder
    program = replace(program, variables={**around.environ, "TZ": "UTC", "PATH": path})
    line = around.really(line)
    if width := _WIDTH.match(line):
        terminal = program.terminal(int(width[1]), *shlex.split(width[2])[1:], NO_COLOR="1")
        out, err, code = terminal.read(), "", terminal.process.wait()
    else:
        done = program.shell(line)
        out, err, code = done.stdout, done.stderr, done.returncode
    out = _compact(out)
    shown = out + ("" if out.endswith("\n") or not out else "\n[no end of line]\n")
    shown += "".join(f"! {each}\n" for each in _USAGE.sub("", err).splitlines())
    shown = around.shown(shown).replace(str(folder.resolve()), "<folder>").replace(str(folder), "<folder>")
    for pattern, name in _CHANGING.items():
        shown = re.sub(pattern, name, shown)
    lines = (re.sub(r" +$", "", each) for each in shown.splitlines())
    usual = 2 if "\n! Error: " in f"\n{shown}" else 0
    return "".join(f"{each}\n" for each in lines) + (f"[exit {code}]\n" if code != usual else "")


def _compact(text: str) -> str:
    """Return text that is JSON with a line for each of its items; the indentation is left out."""
    try:
        content = json.loads(text) if text[:2] in ("{\n", "[\n") else None
    except ValueError:  # several documents, or other text
        content = None
    if not content:
        return text
    named = isinstance(content, dict)
    items = (f"{json.dumps(it)}: {json.dumps(content[it])}" if named else json.dumps(it) for it in content)
    opened, closed = "{}" if named else "[]"
    return f"{opened}\n" + ",\n".join(items) + f"\n{closed}\n"


def agrees(expected: str, printed: str) -> bool:
    """Return whether the output is what the file says."""
    return re.fullmatch(re.escape(expected).replace(re.escape("..."), ".*"), printed) is not None


def main() -> None:
    """Rewrite the outputs that differ."""
    with imported() as server:
        for file in [Path(name) for name in sys.argv[1:]] or sorted(FOLDER.glob("*.md")):
            head, *parts = re.split(r"^(?=## )", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
            for number, section in enumerate(sections(file)):
                done = ""
                with tempfile.TemporaryDirectory() as folder:
                    for command, printed in play(section, Program(server, Path(folder))):
                        before, line, after = parts[number].partition(f"$ {command.line}\n")
                        output = command.output if agrees(command.output, printed) else printed
                        done += before + line + output
                        parts[number] = after.removeprefix(command.output)
                parts[number] = done + parts[number]
            file.write_text(head + "".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main()

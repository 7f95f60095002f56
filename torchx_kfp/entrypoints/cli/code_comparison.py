"""Compare the code of two runs: which files differ, and their lines."""

from __future__ import annotations

import difflib
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchx_kfp.common.text import clean, counted, listed, printable
from torchx_kfp.contract.protocol import WORKSPACE_PARAMETER as WORKSPACE
from torchx_kfp.contract.protocol import workspace_digest
from torchx_kfp.entrypoints.cli.display.printing import print_message, print_text, styled
from torchx_kfp.errors import TrackerError, WorkspaceError

if TYPE_CHECKING:
    from torchx_kfp.entrypoints.cli.resolver import Located
    from torchx_kfp.tracking.recorder import Recorder

#: How many differing files a sentence names, and how many lines a file may have to be compared: the time grows with
#: their square.
_NAMED, _COMPARED = 5, 10_000
#: How many lines of one file's difference are shown, and of all together.
_LINES, _ALL_LINES = 500, 5_000
_COLORS = {"+": "green", "-": "red", "@": "cyan"}
_NO_END = "\n\\ No newline at end of file"


@dataclass(frozen=True)
class _CodeFile:
    """A file of a workspace, or a link; ``content`` of a link is its target."""

    content: bytes
    kind: str


@dataclass(frozen=True)
class FileDifference:
    """A file that differs: in the first run, in the second run, or None where it does not exist."""

    name: str
    before: _CodeFile | None
    after: _CodeFile | None

    @property
    def what(self) -> str:
        """What has become of the file."""
        if self.before is None or self.after is None:
            return "added" if self.before is None else "removed"
        return "changed" if self.before.content != self.after.content else f"now {self.after.kind}"


@dataclass(frozen=True)
class CodeComparison:
    """The code of two runs; ``problem`` says why it cannot be compared, and is empty if it can."""

    runs: tuple[str, str]
    files: tuple[FileDifference, ...] = ()
    problem: str = ""

    def __str__(self) -> str:
        if self.problem or not self.files:
            return f"code: {self.problem}" if self.problem else ""
        verb = "files differ" if len(self.files) > 1 else "file differs"
        return f"code: {len(self.files):,} {verb}: {listed((each.name for each in self.files), _NAMED)}"


def compare_code(
    runs: tuple[str, str], located: tuple[Located, Located], recorders: Mapping[str, Recorder]
) -> CodeComparison:
    """Compare the code of two runs: that of the parameter ``workspace``, or what they have recorded first.

    Args:
        runs: the ids of the pipeline runs.
        located: where they are.
        recorders: their tracker bases.
    """
    digests = [_digest(it, run, recorders[it.base]) for it, run in zip(located, runs, strict=True)]
    if digests[0] == digests[1]:
        return CodeComparison(runs)
    if None in digests:
        return CodeComparison(runs, problem=f"only {runs[digests[0] is None]} has code that travelled with it")
    files: list[dict[str, _CodeFile]] = []
    for name, digest, it in zip(runs, digests, located, strict=True):
        try:
            files.append(_files(recorders[it.base].read_workspace(str(digest))))
        except (TrackerError, WorkspaceError) as error:
            return CodeComparison(runs, problem=f"it differs, but that of {name} cannot be read: {error}")
        except tarfile.TarError as error:
            return CodeComparison(runs, problem=f"it differs, but that of {name} is not an archive of code: {error}")
    first, second = files
    found = (FileDifference(name, first.get(name), second.get(name)) for name in sorted({**first, **second}))
    return CodeComparison(runs, tuple(each for each in found if each.before != each.after))


def print_differences(comparison: CodeComparison) -> None:
    """Print the lines that differ, in the form of ``diff -u``: colored in a terminal, and bounded.

    A sentence on stderr says why there are none.
    """
    if comparison.problem or not comparison.files:
        print_message(str(comparison) or f"The code of {' and '.join(comparison.runs)} does not differ.")
    left = _ALL_LINES
    for number, file in enumerate(comparison.files):
        if left <= 0:
            more = counted(len(comparison.files) - number, "more file")
            print_text(f"... and {more}; `torchx-kfp code RUN` brings back all.")
            return
        lines = list(_lines(file, comparison.runs))
        shown = min(_LINES, left)
        for line in lines[:shown]:
            is_name = line.startswith(("--- ", "+++ "))
            print_text(styled(line, bold=True) if is_name else styled(line, fg=_COLORS.get(line[:1])))
        if len(lines) > shown:
            print_text(f"... and {counted(len(lines) - shown, 'more line')} of {printable(file.name)}")
        left -= len(lines)


def _digest(located: Located, run: str, recorder: Recorder) -> str | None:
    given = located.arguments.get(WORKSPACE)
    digest = workspace_digest(given) if isinstance(given, str) else None
    if digest is not None:
        return digest
    code = recorder.record(run, "code").code
    return code[0].digest if code else None


def _files(archive: bytes) -> dict[str, _CodeFile]:
    from torchx_kfp.contract.carried.workspace import content, members

    found: dict[str, _CodeFile] = {}
    for member in members(archive):
        if member.issym():
            found[member.name] = _CodeFile(member.linkname.encode(errors="surrogateescape"), "a link")
        else:
            kind = "executable" if member.mode & 0o100 else "not executable"
            found[member.name] = _CodeFile(bytes(content(archive, member)), kind)
    return found


def _lines(file: FileDifference, runs: tuple[str, str]) -> Iterator[str]:
    name = printable(file.name)
    before, after = (
        "/dev/null" if it is None else f"{printable(run)}/{name}"
        for it, run in zip((file.before, file.after), runs, strict=True)
    )
    if file.before and file.after and file.before.kind != file.after.kind:
        yield f"{name} is {file.after.kind} now"
        if file.before.content == file.after.content:
            return
    old, new = _text(file.before), _text(file.after)
    if old is None or new is None:
        yield f"Binary files {before} and {after} differ"
        return
    if max(len(old), len(new)) > _COMPARED:
        yield f"Files {before} and {after} differ; they have more than {_COMPARED:,} lines"
        return
    lines = list(difflib.unified_diff(old, new, before, after, lineterm=""))
    # An empty file has no lines to show.
    for line in lines or [f"--- {before}", f"+++ {after}"]:
        yield from clean(line).split("\n")


def _text(file: _CodeFile | None) -> list[str] | None:
    """Return the lines of a file; None if it is not text."""
    if file is None:
        return []
    try:
        text = file.content.decode()
    except UnicodeDecodeError:
        return None
    if "\0" in text:
        return None
    lines = text.split("\n")
    return lines[:-1] if not lines[-1] else [*lines[:-1], lines[-1] + _NO_END]

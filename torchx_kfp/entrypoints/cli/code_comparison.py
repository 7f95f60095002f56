"""Compare the code of two runs: which files differ."""

from __future__ import annotations

import tarfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchx_kfp.common.text import listed
from torchx_kfp.contract.protocol import WORKSPACE_PARAMETER as WORKSPACE
from torchx_kfp.contract.protocol import workspace_digest
from torchx_kfp.errors import TrackerError, WorkspaceError

if TYPE_CHECKING:
    from torchx_kfp.entrypoints.cli.recorded import Recorded

#: How many differing files a sentence names.
_NAMED = 5


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


def compare_code(runs: tuple[str, str], located: tuple[Recorded, Recorded]) -> CodeComparison:
    """Compare the code of two runs: that of the parameter ``workspace``, or what they have recorded first.

    Args:
        runs: the ids of the pipeline runs.
        located: their records.
    """
    digests = [_digest(it, run) for it, run in zip(located, runs, strict=True)]
    if digests[0] == digests[1]:
        return CodeComparison(runs)
    if None in digests:
        return CodeComparison(runs, problem=f"only {runs[digests[0] is None]} has code that travelled with it")
    files: list[dict[str, _CodeFile]] = []
    for name, digest, it in zip(runs, digests, located, strict=True):
        try:
            files.append(_files(it.recorder.read_workspace(str(digest))))
        except (TrackerError, WorkspaceError) as error:
            return CodeComparison(runs, problem=f"it differs, but that of {name} cannot be read: {error}")
        except tarfile.TarError as error:
            return CodeComparison(runs, problem=f"it differs, but that of {name} is not an archive of code: {error}")
    first, second = files
    found = (FileDifference(name, first.get(name), second.get(name)) for name in sorted({**first, **second}))
    return CodeComparison(runs, tuple(each for each in found if each.before != each.after))


def _digest(located: Recorded, run: str) -> str | None:
    given = located.arguments.get(WORKSPACE)
    digest = workspace_digest(given) if isinstance(given, str) else None
    if digest is not None:
        return digest
    code = located.recorder.record(run, "code").code
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

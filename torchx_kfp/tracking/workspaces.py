"""Workspaces: the files of a folder, stored once under their SHA-256, however many runs use them.

    <tracker base>/.torchx_kfp/workspaces/<digest>.tar

A submit stores an archive again that is half a day old: a bucket's rule that removes old files counts from the last
run.

An archive depends only on the names, modes and contents of the files: it is a tar file without compression, in PAX's
form. Other implementations of Python and zlib would compress to other bytes. Entries are sorted by name; times and
owners are left out, and of the modes only the executable bit is kept.

Which files belong to a workspace: everything that ``.torchxignore`` at its top does not exclude (in the syntax of
``.gitignore``); without that file, what git tracks or would track; without git, everything. Never: ``NEVER``, virtual
environments, and what runs write: any tracker base, and ``local_outputs``.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import itertools
import os
import re
import shlex
import stat
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from torchx_kfp.common.credentials import credentials_matcher, matcher
from torchx_kfp.common.git import GitState, read_git_state, run_git
from torchx_kfp.common.safe_files import PRIVATE, UnfitFileError, is_below, open_regular, read_bytes, special_kind
from torchx_kfp.common.text import counted, shown, size_text
from torchx_kfp.contract.protocol import workspace_key
from torchx_kfp.contract.scripts import UNPACKER, unpacker_file
from torchx_kfp.errors import WorkspaceError, explain
from torchx_kfp.tracking.disk import DiskStore
from torchx_kfp.tracking.records import Code
from torchx_kfp.tracking.store import File, Store

_FOLDER = workspace_key("").rpartition("/")[0]
_NAME = re.compile(rf"{re.escape(_FOLDER)}/([0-9a-f]{{64}})\.tar")
#: Seconds for which a submit takes an archive for fresh.
FRESH = 12 * 3600.0

IGNORE_FILE = ".torchxignore"
#: Names of folders that never travel.
NEVER = frozenset({".git", ".hg", ".svn", "__pycache__", "local_outputs", "node_modules", PRIVATE, ".venv"})
#: What marks other folders that never travel: virtual environments, and tracker bases.
_MARKS = ("pyvenv.cfg", "conda-meta", PRIVATE)
#: Bytes of a workspace above which it needs to be allowed.
LARGEST = 100_000_000
#: The bytes of a file that is searched for names of others, at most.
_LONGEST_CODE = 1 << 20
#: The bytes of ``.torchxignore``, at most.
_LONGEST_IGNORE = 1 << 20
#: The files of a folder on this machine, at most: those that can be listed in about a second.
MOST_FILES = 20_000
#: Files whose text may name others, and the paths that stand in quotes there.
_CODE = (".py", ".sh", ".yaml", ".yml", ".toml", ".json", ".cfg", ".ini")
_PATH = re.compile(rb"""["']([\w./ -]{1,255}\.\w+)["']""")
#: How many files with credentials a message names.
_NAMED = 20


@dataclass(frozen=True)
class WorkspaceFile:
    """A file or link of a workspace.

    ``name`` is relative, with ``/``; ``path`` is where it is on this machine; ``modified`` is its time of change in
    nanoseconds; ``target`` is that of a link.
    """

    name: str
    path: str
    size: int = 0
    modified: int = 0
    executable: bool = False
    target: str | None = None


@dataclass(frozen=True)
class PackedWorkspace:
    """The files of a folder and their archive, which ``upload`` stores.

    Attributes:
        entries: the files.
        git: the state of the repository in which the folder is, the first one of several, if it is in one.
        lacks: files of the folder that are left out, although a file of the workspace names them, by those.
    """

    store: Store
    digest: str
    archive: bytes = field(repr=False)
    entries: Sequence[WorkspaceFile]
    git: GitState | None = None
    lacks: Mapping[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """The URL that the archive has once it is stored."""
        return f"{self.store.base.rstrip('/')}/{workspace_key(self.digest)}"

    @property
    def size(self) -> int:
        """The bytes of the archive."""
        return len(self.archive)

    @property
    def code(self) -> Code:
        """What a run records about it."""
        return Code(self.digest, self.size, len(self.entries), self.git)

    def upload(self) -> bool:
        """Store the archive, and return True; False if it is there already, and was stored within the last hours.

        Raises:
            TrackerError: the store cannot be read or written.
        """
        there = find_archives(self.store).get(self.digest)
        # An archive of another size was damaged.
        if there is not None and there.size == self.size and time.time() - there.modified < FRESH:
            return False
        self.store.write(workspace_key(self.digest), self.archive)
        return True


def find_archives(store: Store) -> dict[str, File]:
    """Return the archives by their digests."""
    return {name[1]: file for file in store.list_files(_FOLDER) if (name := _NAME.fullmatch(file.key))}


def pack_folders(store: Store, folders: Mapping[str, str], without: Iterable[str] = ()) -> PackedWorkspace:
    """Pack folders, without a request to the store.

    Args:
        store: the store of the tracker base.
        folders: the folders, and the path of each in the workspace; "" is its top. As in TorchX, a file of a later one
            replaces that of an earlier one with the same name.
        without: folders that do not belong to the workspace even if they are inside. A tracker base never does.

    Raises:
        WorkspaceError: a folder cannot travel; the message says why.
    """
    base = [store.folder] if isinstance(store, DiskStore) else []
    found = {folder: list_workspace(folder, [*base, *without]) for folder in folders}
    entries = _merged(found, folders)
    total, what = sum(entry.size for entry in entries), ", ".join(map(shown, folders))
    if not entries:
        raise WorkspaceError(f"The workspace {what} has no files, or {IGNORE_FILE} or git ignores them all.")
    if total > LARGEST:
        biggest = sorted(entries, key=lambda entry: -entry.size)[:5]
        named = ", ".join(f"{entry.name} ({size_text(entry.size)})" for entry in biggest)
        raise WorkspaceError(
            f"The workspace {what} has {size_text(total)}, more than {size_text(LARGEST)}. Its largest files: {named}. "
            f"Exclude what the stages do not need in {IGNORE_FILE}."
        )
    archive = pack_workspace(entries)
    first = next(iter(folders))
    git = read_git_state(first, {entry.name for entry in found[first]})
    lacks = {name: lacking for folder in folders for name, lacking in _left_out(folder, found[folder])}
    return PackedWorkspace(store, hashlib.sha256(archive).hexdigest(), archive, entries, git, lacks)


def _left_out(folder: str, entries: Sequence[WorkspaceFile]) -> Iterator[tuple[str, str]]:
    """Yield files of a folder that do not travel although a file or link that does names them, with its name."""
    names = {entry.name for entry in entries}
    for entry in entries:
        place = os.path.dirname(entry.name)
        if entry.target is not None:
            to = os.path.normpath(os.path.join(place, entry.target))
            if to not in names and not any(name.startswith(f"{to}/") for name in names):
                yield to, entry.name
        elif entry.name.endswith(_CODE) and entry.size <= _LONGEST_CODE:
            text = read_bytes(entry.path, limit=_LONGEST_CODE)
            for path in dict.fromkeys(map(os.fsdecode, _PATH.findall(text))):
                for name in (os.path.normpath(path), os.path.normpath(os.path.join(place, path))):
                    if name not in names and not name.startswith(("/", "..")) and os.path.isfile(f"{folder}/{name}"):
                        yield name, entry.name


def _merged(found: Mapping[str, Sequence[WorkspaceFile]], places: Mapping[str, str]) -> list[WorkspaceFile]:
    """Return the files of folders with their names in the workspace, sorted."""
    files: dict[str, WorkspaceFile] = {}
    for folder, entries in found.items():
        for entry in entries:
            name = f"{places[folder]}/{entry.name}" if places[folder] else entry.name
            files[name] = replace(entry, name=name)
    for name in files:
        above = name.split("/")[:-1]
        for count in range(1, len(above) + 1):
            if (folder := "/".join(above[:count])) in files:
                raise WorkspaceError(f"{shown(folder)} is a folder of one project, and a file of another.")
    return [files[name] for name in sorted(files)]


def list_workspace(folder: str | os.PathLike[str], without: Iterable[str] = ()) -> list[WorkspaceFile]:
    """Return what belongs to the workspace in a folder, sorted by name.

    Args:
        folder: the folder.
        without: folders that do not belong to it even if they are inside, such as the tracker base.

    Raises:
        WorkspaceError: the folder cannot be read, or has something that cannot travel: a socket, FIFO or device, a link
            that leads out of the folder, a name that is not UTF-8, or a file that looks like credentials and that
            ``.torchxignore`` does not include by a line ``!name``. Git cannot list a folder of a repository.
    """
    root = os.path.abspath(folder)
    if not os.path.isdir(folder):  # the root of "" is the current directory
        raise WorkspaceError(
            f"The workspace {shown(os.fspath(folder))} is not a folder. Give the folder with the code."
        )
    try:
        names, included = _rules(root, _test_of_folders(root, without))
        entries = [_entry(root, name) for name in sorted(names)]
    except OSError as error:
        raise WorkspaceError(f"The workspace {shown(root)} cannot be read: {explain(error)}.") from None
    except RecursionError:
        raise WorkspaceError(
            f"The workspace {shown(root)} has folders or links that are nested too deeply. Exclude them in "
            f"{IGNORE_FILE}."
        ) from None
    looks_secret = credentials_matcher()
    secrets = [entry.name for entry in entries if entry.name not in included and looks_secret(entry.name)]
    if secrets:
        raise WorkspaceError(
            f"The workspace {shown(root)} has {counted(len(secrets), 'file')} that may hold credentials: "
            f"{', '.join(map(shown, secrets[:_NAMED]))}{', ...' if len(secrets) > _NAMED else ''}. Exclude them by a "
            f"line in {IGNORE_FILE}, or send them on purpose, by a line such as !{secrets[0]} there."
        )
    return entries


def list_code(folder: str | os.PathLike[str], without: Iterable[str] = ()) -> list[WorkspaceFile]:
    """Return the files and links of a folder on this machine that could belong to its workspace, sorted by name.

    Unlike those of ``list_workspace``, they may be anything; and if git ignores them all, all are there.

    Raises:
        WorkspaceError: they are more than ``MOST_FILES``, or cannot be listed.
    """
    root = os.path.abspath(folder)
    try:
        found = _rules(root, _test_of_folders(root, without), travels=False)[0]
        names = list(itertools.islice(found, MOST_FILES + 1))
    except OSError as error:
        raise WorkspaceError(f"{shown(root)} cannot be listed: {explain(error)}.") from None
    if len(names) > MOST_FILES:
        raise WorkspaceError(
            f"{shown(root)} has more than {counted(MOST_FILES, 'file')}. List those that are not code in "
            f"{IGNORE_FILE} there."
        )
    entries: list[WorkspaceFile] = []
    for name in sorted(names):
        path = os.path.join(root, name)
        with contextlib.suppress(OSError):  # it is gone meanwhile
            status = os.lstat(path)
            if stat.S_ISLNK(status.st_mode):
                entries.append(WorkspaceFile(name, path, target=os.readlink(path)))
            elif stat.S_ISREG(status.st_mode):
                is_program = bool(status.st_mode & stat.S_IXUSR)
                entries.append(WorkspaceFile(name, path, status.st_size, status.st_mtime_ns, is_program))
    return entries


def pack_workspace(entries: Sequence[WorkspaceFile]) -> bytes:
    """Return the archive of files, which begins with the program that unpacks it.

    Raises:
        WorkspaceError: a file has changed since it was listed, or cannot be read.
    """
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:", format=tarfile.PAX_FORMAT) as archive:
        program = tarfile.TarInfo(UNPACKER)
        program.size = len(unpacker_file())
        archive.addfile(program, io.BytesIO(unpacker_file()))
        for entry in entries:
            member = tarfile.TarInfo(entry.name)
            if entry.target is None:
                content = _read(entry)
                member.mode = 0o755 if entry.executable else 0o644
            else:
                content = b""
                member.type, member.linkname, member.mode = tarfile.SYMTYPE, entry.target, 0o777
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


def _read(entry: WorkspaceFile) -> bytes:
    """Return the content of a file, which must be as it was listed."""
    try:
        with open_regular(entry.path, os.path.dirname(entry.path)) as file:
            content = file.read(entry.size + 1)
            if len(content) == entry.size and os.fstat(file.fileno()).st_mtime_ns == entry.modified:
                return content
    except UnfitFileError:  # a link or FIFO has taken its place
        pass
    except OSError as error:
        raise WorkspaceError(f"{shown(entry.name)} of the workspace cannot be read: {explain(error)}.") from None
    raise WorkspaceError(f"{shown(entry.name)} changed while the workspace was packed. Pack it again.")


def _test_of_folders(root: str, without: Iterable[str]) -> Callable[[str], bool]:
    """Return a test of folders, by their names below the root: whether their files never travel."""
    places = {os.path.realpath(folder) for folder in without}

    @functools.cache
    def stays(folder: str) -> bool:
        above, _, name = folder.rpartition("/")
        path = os.path.join(root, folder)
        return bool(folder) and (
            name in NEVER
            or stays(above)
            or os.path.realpath(path) in places
            or any(os.path.lexists(os.path.join(path, mark)) for mark in _MARKS)
        )

    return stays


def _rules(root: str, stays: Callable[[str], bool], *, travels: bool = True) -> tuple[Iterable[str], set[str]]:
    """Return the names of the files of a workspace, and those that a line ``!name`` includes.

    If they do not travel, a repository that git does not list is a folder like others.
    """
    try:
        # The folder may be somebody else's: a FIFO or a device would never end.
        lines = read_bytes(os.path.join(root, IGNORE_FILE), limit=_LONGEST_IGNORE).decode("utf-8-sig").splitlines()
        ignored = matcher(lines)
        included = {line[1:].strip().lstrip("/") for line in lines if line.startswith("!")}
    except FileNotFoundError:
        tracked = _of_git(root, stays)
        if tracked is None and travels:
            _refuse_repository(root)
        if tracked is None or not (tracked or travels):
            return _walk(root, stays, lambda _: False), set()
        return tracked, set()
    except Exception as error:  # each implementation of patterns has its own errors
        raise WorkspaceError(f"{IGNORE_FILE} of the workspace {shown(root)} cannot be read: {error}.") from None

    return _walk(root, stays, ignored), included


def _refuse_repository(root: str) -> None:
    """Raise WorkspaceError if git should have listed the folder: what it ignores must not travel."""
    here = Path(root).resolve()
    for path in (here, *here.parents):
        if os.path.lexists(path / ".git"):
            raise WorkspaceError(
                f"The workspace {shown(root)} is in the repository {shown(str(path))}, and git does not say which "
                f"files it tracks: see `git -C {shlex.quote(root)} status`, or list what to leave out in {IGNORE_FILE}."
            )


def _of_git(root: str, stays: Callable[[str], bool], folder: str = "") -> list[str] | None:
    """Return the files that git tracks or would track; None if the folder is not in a repository."""
    listed = run_git(os.path.join(root, folder), "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    if listed is None:
        return None
    found: list[str] = []
    for name in {f"{folder}{os.fsdecode(name)}" for name in listed.split(b"\0") if name}:
        path = os.path.join(root, name)
        if os.path.isdir(path) and not os.path.islink(path):  # a submodule
            found += _of_git(root, stays, f"{name.rstrip('/')}/") or ()
        elif os.path.lexists(path) and not stays(os.path.dirname(name)):
            found.append(name)
    return found


def _walk(root: str, stays: Callable[[str], bool], ignored: Callable[[str], bool], folder: str = "") -> Iterator[str]:
    """Yield the names of all files that are not ignored. As in git, nothing in an ignored folder can be included."""
    with os.scandir(os.path.join(root, folder)) as entries:
        for entry in entries:
            name = f"{folder}{entry.name}"
            if not entry.is_dir(follow_symlinks=False):
                # In a worktree of git, or a submodule, .git is a file.
                if entry.name != ".git" and not ignored(name):
                    yield name
            elif not (stays(name) or ignored(f"{name}/")):
                yield from _walk(root, stays, ignored, f"{name}/")


def _entry(root: str, name: str) -> WorkspaceFile:
    path = os.path.join(root, name)
    try:
        name.encode()
    except UnicodeEncodeError:
        raise WorkspaceError(
            f"The name {os.fsencode(name)!r} in the workspace is not UTF-8. Rename or exclude it."
        ) from None
    status = os.lstat(path)
    if stat.S_ISREG(status.st_mode):
        return WorkspaceFile(name, path, status.st_size, status.st_mtime_ns, bool(status.st_mode & stat.S_IXUSR))
    if not stat.S_ISLNK(status.st_mode):
        raise WorkspaceError(
            f"{shown(name)} in the workspace is a {special_kind(status.st_mode)}. Only files and links travel: exclude "
            f"it in {IGNORE_FILE}."
        )
    target = os.readlink(path)
    if _leads_out(path, root):
        raise WorkspaceError(
            f"{shown(name)} in the workspace is a link to {shown(target)}, outside of it. Copy the file into the "
            f"workspace, or exclude the link in {IGNORE_FILE}."
        )
    return WorkspaceFile(name, path, target=target)


def _leads_out(path: str, top: str) -> bool:
    """Tell whether a link in a folder leads out of it, or to a place that only the folder's name here leads back to."""
    to = os.readlink(path)
    by_text = os.path.normpath(os.path.join(os.path.relpath(os.path.dirname(path), top), to))
    # The target counts as well as the text: a link to the top, and .. after it, or to another link, would lead out.
    is_inside = is_below(os.path.realpath(path), os.path.realpath(top))
    return os.path.isabs(to) or by_text.split("/")[0] == ".." or not is_inside

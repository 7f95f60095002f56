"""Workspaces: the files of a folder, stored once under their SHA-256 for all runs that use them.

    <tracker base>/.torchx_kfp/workspaces/<digest>.tar

An archive older than half a day is stored again, so that lifecycle rules of a bucket count from the last run.

An archive depends only on the names, executable bits and contents of the files. It is an uncompressed tar file in PAX
format, because compressed bytes differ between versions of zlib. Entries are sorted by name, without times and owners.

A workspace has all files that ``.torchxignore`` at its top does not exclude, in the syntax of ``.gitignore``; without
that file, all that git tracks or would track; without git, all files. It never has the folders in ``NEVER``, virtual
environments, tracker bases or ``local_outputs``.
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
from torchx_kfp.errors import ArgumentError, explain
from torchx_kfp.tracking.disk import DiskStore
from torchx_kfp.tracking.records import Code
from torchx_kfp.tracking.store import File, Store

_FOLDER = workspace_key("").rpartition("/")[0]
_NAME = re.compile(rf"{re.escape(_FOLDER)}/([0-9a-f]{{64}})\.tar")
#: Seconds after which a submit stores an archive again.
FRESH = 12 * 3600.0

IGNORE_FILE = ".torchxignore"
#: The names of folders that never travel.
NEVER = frozenset({".git", ".hg", ".svn", "__pycache__", "local_outputs", "node_modules", PRIVATE, ".venv"})
#: Files that mark other folders that never travel: virtual environments and tracker bases.
_MARKS = ("pyvenv.cfg", "conda-meta", PRIVATE)
#: The largest workspace, in bytes.
LARGEST = 100_000_000
#: The largest file that is searched for names of other files, in bytes.
_LONGEST_CODE = 1 << 20
#: The largest ``.torchxignore``, in bytes.
_LONGEST_IGNORE = 1 << 20
#: The most files of a local folder: as many as can be listed in about a second.
MOST_FILES = 20_000
#: The suffixes of files whose text may name other files, and the pattern of quoted paths there.
_CODE = (".py", ".sh", ".yaml", ".yml", ".toml", ".json", ".cfg", ".ini")
_PATH = re.compile(rb"""["']([\w./ -]{1,255}\.\w+)["']""")
#: The most files with credentials that a message names.
_NAMED = 20


@dataclass(frozen=True)
class WorkspaceFile:
    """A file or link of a workspace.

    ``name`` is its relative path in the workspace, ``path`` its local path, ``modified`` its modification time in
    nanoseconds, and ``target`` that of a link.
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
        git: the state of the (first) folder's repository; None without one.
        lacks: omitted files that a file of the workspace names, by the naming file.
    """

    store: Store
    digest: str
    archive: bytes = field(repr=False)
    entries: Sequence[WorkspaceFile]
    git: GitState | None = None
    lacks: Mapping[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """The URL of the archive in the store."""
        return f"{self.store.base.rstrip('/')}/{workspace_key(self.digest)}"

    @property
    def size(self) -> int:
        """The size of the archive in bytes."""
        return len(self.archive)

    @property
    def code(self) -> Code:
        """The record of the workspace in a run."""
        return Code(self.digest, self.size, len(self.entries), self.git)

    def upload(self) -> bool:
        """Store the archive, and return True; return False if it was already stored within the last hours.

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
    """Pack folders; the store gets no request.

    Args:
        store: the store of the tracker base.
        folders: the path of each folder in the workspace, "" for its top. As in TorchX, files of later folders replace
            those of the same name.
        without: inner folders to leave out. Tracker bases are always left out.

    Raises:
        ArgumentError: a folder cannot travel; the message says why.
    """
    base = [store.folder] if isinstance(store, DiskStore) else []
    files = {folder: list_workspace(folder, [*base, *without]) for folder in folders}
    entries = _merged(files, folders)
    total, what = sum(entry.size for entry in entries), ", ".join(map(shown, folders))
    if not entries:
        raise ArgumentError(f"The workspace {what} has no files, or {IGNORE_FILE} or git ignores them all.")
    if total > LARGEST:
        biggest = sorted(entries, key=lambda entry: -entry.size)[:5]
        named = ", ".join(f"{entry.name} ({size_text(entry.size)})" for entry in biggest)
        raise ArgumentError(
            f"The workspace {what} has {size_text(total)}, more than {size_text(LARGEST)}. Its largest files: {named}. "
            f"Exclude what the stages do not need in {IGNORE_FILE}."
        )
    archive = pack_workspace(entries)
    first = next(iter(folders))
    git = read_git_state(first, {entry.name for entry in files[first]})
    lacks = {name: lacking for folder in folders for name, lacking in _left_out(folder, files[folder])}
    return PackedWorkspace(store, hashlib.sha256(archive).hexdigest(), archive, entries, git, lacks)


def _left_out(folder: str, entries: Sequence[WorkspaceFile]) -> Iterator[tuple[str, str]]:
    """Yield files that do not travel although a traveling file or link names them, with its name."""
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
                raise ArgumentError(f"{shown(folder)} is a folder of one project, and a file of another.")
    return [files[name] for name in sorted(files)]


def list_workspace(folder: str | os.PathLike[str], without: Iterable[str] = ()) -> list[WorkspaceFile]:
    """Return the files and links of the workspace in a folder, sorted by name.

    Args:
        folder: the folder.
        without: inner folders to leave out, such as the tracker base.

    Raises:
        ArgumentError: the folder cannot be read, git cannot list it, or it has something that cannot travel: a socket,
            FIFO or device, a link that leads out of the folder, a name that is not UTF-8, or a file that may hold
            credentials and that no line ``!name`` of ``.torchxignore`` includes.
    """
    root = os.path.abspath(folder)
    if not os.path.isdir(folder):  # the root of "" is the current directory
        raise ArgumentError(f"The workspace {shown(os.fspath(folder))} is not a folder. Give the folder with the code.")
    try:
        names, included = _rules(root, _test_of_folders(root, without))
        entries = [_entry(root, name) for name in sorted(names)]
    except OSError as error:
        raise ArgumentError(f"The workspace {shown(root)} cannot be read: {explain(error)}.") from None
    except RecursionError:
        raise ArgumentError(
            f"The workspace {shown(root)} has folders or links that are nested too deeply. Exclude them in "
            f"{IGNORE_FILE}."
        ) from None
    looks_secret = credentials_matcher()
    secrets = [entry.name for entry in entries if entry.name not in included and looks_secret(entry.name)]
    if secrets:
        raise ArgumentError(
            f"The workspace {shown(root)} has {counted(len(secrets), 'file')} that may hold credentials: "
            f"{', '.join(map(shown, secrets[:_NAMED]))}{', ...' if len(secrets) > _NAMED else ''}. Exclude them by a "
            f"line in {IGNORE_FILE}, or send them on purpose, by a line such as !{secrets[0]} there."
        )
    return entries


def list_code(folder: str | os.PathLike[str], without: Iterable[str] = ()) -> list[WorkspaceFile]:
    """Return the files and links of a local folder that could belong to its workspace, sorted by name.

    Unlike ``list_workspace``, this does not refuse any file; if git ignores all files, all are returned.

    Raises:
        ArgumentError: there are more than ``MOST_FILES``, or they cannot be listed.
    """
    root = os.path.abspath(folder)
    try:
        found = _rules(root, _test_of_folders(root, without), travels=False)[0]
        names = list(itertools.islice(found, MOST_FILES + 1))
    except OSError as error:
        raise ArgumentError(f"{shown(root)} cannot be listed: {explain(error)}.") from None
    if len(names) > MOST_FILES:
        raise ArgumentError(
            f"{shown(root)} has more than {counted(MOST_FILES, 'file')}. List those that are not code in "
            f"{IGNORE_FILE} there."
        )
    entries: list[WorkspaceFile] = []
    for name in sorted(names):
        with contextlib.suppress(OSError):  # removed in the meantime
            if (entry := _file_or_link(root, name)) is not None:
                entries.append(entry)
    return entries


def pack_workspace(entries: Sequence[WorkspaceFile]) -> bytes:
    """Return the archive of the files, which begins with the program that unpacks it.

    Raises:
        ArgumentError: a file cannot be read, or changed after it was listed.
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
    """Return the content of a file, which must not have changed after it was listed."""
    try:
        with open_regular(entry.path, os.path.dirname(entry.path)) as file:
            content = file.read(entry.size + 1)
            if len(content) == entry.size and os.fstat(file.fileno()).st_mtime_ns == entry.modified:
                return content
    except UnfitFileError:  # now a link or FIFO
        pass
    except OSError as error:
        raise ArgumentError(f"{shown(entry.name)} of the workspace cannot be read: {explain(error)}.") from None
    raise ArgumentError(f"{shown(entry.name)} changed while the workspace was packed. Pack it again.")


def _test_of_folders(root: str, without: Iterable[str]) -> Callable[[str], bool]:
    """Return a predicate for folder names below the root: true if their files never travel."""
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
    """Return the names of the files of a workspace, and the names that lines ``!name`` include.

    If the files do not travel, a repository that git cannot list counts as a plain folder.
    """
    try:
        # In the folder of somebody else, it may be a FIFO or a device, which would never end.
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
        raise ArgumentError(f"{IGNORE_FILE} of the workspace {shown(root)} cannot be read: {error}.") from None

    return _walk(root, stays, ignored), included


def _refuse_repository(root: str) -> None:
    """Raise ArgumentError if git should have listed the folder, because ignored files must not travel."""
    here = Path(root).resolve()
    for path in (here, *here.parents):
        if os.path.lexists(path / ".git"):
            raise ArgumentError(
                f"The workspace {shown(root)} is in the repository {shown(str(path))}, and git does not report which "
                f"files it tracks: see `git -C {shlex.quote(root)} status`, or list what to leave out in {IGNORE_FILE}."
            )


def _of_git(root: str, stays: Callable[[str], bool], folder: str = "") -> list[str] | None:
    """Return the files that git tracks or would track; None outside a repository."""
    listed = run_git(os.path.join(root, folder), "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    if listed is None:
        return None
    names: list[str] = []
    for name in {f"{folder}{os.fsdecode(name)}" for name in listed.split(b"\0") if name}:
        path = os.path.join(root, name)
        if os.path.isdir(path) and not os.path.islink(path):  # a submodule
            names += _of_git(root, stays, f"{name.rstrip('/')}/") or ()
        elif os.path.lexists(path) and not stays(os.path.dirname(name)):
            names.append(name)
    return names


def _walk(root: str, stays: Callable[[str], bool], ignored: Callable[[str], bool], folder: str = "") -> Iterator[str]:
    """Yield the names of all files that are not ignored. As in git, files in an ignored folder cannot be included."""
    with os.scandir(os.path.join(root, folder)) as entries:
        for entry in entries:
            name = f"{folder}{entry.name}"
            if not entry.is_dir(follow_symlinks=False):
                # In a worktree or a submodule, .git is a file.
                if entry.name != ".git" and not ignored(name):
                    yield name
            elif not (stays(name) or ignored(f"{name}/")):
                yield from _walk(root, stays, ignored, f"{name}/")


def _entry(root: str, name: str) -> WorkspaceFile:
    path = os.path.join(root, name)
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ArgumentError(
            f"The name {os.fsencode(name)!r} in the workspace is not UTF-8. Rename or exclude it."
        ) from None
    entry = _file_or_link(root, name)
    if entry is None:
        raise ArgumentError(
            f"{shown(name)} in the workspace is a {special_kind(os.lstat(path).st_mode)}. Only files and links travel: "
            f"exclude it in {IGNORE_FILE}."
        )
    if entry.target is not None and _leads_out(path, root):
        raise ArgumentError(
            f"{shown(name)} in the workspace is a link to {shown(entry.target)}, outside of it. Copy the file into the "
            f"workspace, or exclude the link in {IGNORE_FILE}."
        )
    return entry


def _file_or_link(root: str, name: str) -> WorkspaceFile | None:
    """Return a file or link of a folder; None for a FIFO, socket or device."""
    path = os.path.join(root, name)
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode):
        return WorkspaceFile(name, path, target=os.readlink(path))
    if not stat.S_ISREG(status.st_mode):
        return None
    return WorkspaceFile(name, path, status.st_size, status.st_mtime_ns, bool(status.st_mode & stat.S_IXUSR))


def _leads_out(path: str, top: str) -> bool:
    """Return whether a link leads out of the folder, or back into it only through the folder's local name."""
    to = os.readlink(path)
    by_text = os.path.normpath(os.path.join(os.path.relpath(os.path.dirname(path), top), to))
    # Both the text and the target count: a link to the top followed by "..", or to another link, could lead out.
    is_inside = is_below(os.path.realpath(path), os.path.realpath(top))
    return os.path.isabs(to) or by_text.split("/")[0] == ".." or not is_inside

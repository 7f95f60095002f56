"""Local files: atomic writes, and reads of regular files only.

``write_file`` writes atomically: readers see the old content or the new one. The content goes into a temporary file in
the same folder, is forced to disk, and is then renamed. A killed writer leaves the temporary file behind; its name
begins with ``TEMPORARY``.

Run folders and tracker bases may come from others. Reading a FIFO or a device may block forever, and a
link may lead to the user's own files: ``open_regular`` rejects both.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from typing import BinaryIO

#: The folder for all of a tracker's data except results. Names that begin with it are reserved: keys cannot contain
#: them, and listings of results omit them.
PRIVATE = ".torchx_kfp"
#: The prefix of temporary files.
TEMPORARY = f"{PRIVATE}-"

#: The most attempts of a write: other processes may remove a folder just after this one has created it.
_ATTEMPTS = 100
_CHUNK = 1 << 20
_KINDS = {stat.S_IFDIR: "folder", stat.S_IFIFO: "FIFO", stat.S_IFSOCK: "socket", stat.S_IFLNK: "symbolic link"}


class UnfitFileError(OSError):
    """The path is not a readable regular file.

    Attributes:
        mode: the mode bits at the path; 0 if they are not the reason.
    """

    def __init__(self, message: str, mode: int = 0) -> None:
        super().__init__(message)
        self.mode = mode


def special_kind(mode: int) -> str:
    """Return the kind of a special file, or "": opening or reading one may block forever."""
    return "" if stat.S_ISREG(mode) or stat.S_ISDIR(mode) else _kind(mode)


def _kind(mode: int) -> str:
    return _KINDS.get(stat.S_IFMT(mode), "device")


def is_below(path: str, folder: str) -> bool:
    """Return whether a path or URL names a folder or something inside it."""
    path = path if "://" in path else os.path.normpath(path)
    return path == folder or path.startswith(os.path.join(folder, ""))


# Reading


def open_regular(path: str, root: str | None = None) -> BinaryIO:
    """Open a regular file for reading.

    Args:
        path: the file's path.
        root: the folder that must contain it; None for any.

    Raises:
        UnfitFileError: it is not a regular file, or is outside the root.
        OSError: it cannot be opened.
    """
    mode = os.stat(path).st_mode  # also fails for a loop of links
    if root is not None and not is_below(os.path.realpath(path), os.path.realpath(root)):
        raise UnfitFileError(f"{path} is a symbolic link out of {root}", stat.S_IFLNK)
    if not stat.S_ISREG(mode):
        raise UnfitFileError(f"{path} is a {_kind(mode)}", mode)
    return open(path, "rb")


def read_bytes(path: str, root: str | None = None, *, limit: int) -> bytes:
    """Return the content of a file; the arguments are those of ``open_regular``.

    Raises:
        UnfitFileError: it has more bytes than ``limit``, is not a regular file, or is outside the root.
        OSError: it cannot be read.
    """
    with open_regular(path, root) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise UnfitFileError(f"{path} is larger than {limit >> 20} MiB")
    return data


# Writing


def write_file(
    path: str | os.PathLike[str],
    content: bytes | BinaryIO,
    *,
    durable: bool = True,
    permissions: int | None = None,
    folder_mode: int | None = None,
) -> None:
    """Write a file atomically. Missing folders are created.

    Args:
        path: the file's path.
        content: the content of the file, or a file to copy.
        durable: force the content and the file's name to disk, so that they survive a crash of the machine.
        permissions: the file's mode bits. Default: those of a new file under the umask.
        folder_mode: the mode bits of created folders, likewise.

    Raises:
        OSError: the file could not be written; it is unchanged.
    """
    path = os.fspath(path)
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            make_folder(os.path.dirname(path), folder_mode)
            _write(path, content, durable, permissions)
            return
        except FileNotFoundError:  # another process has removed the folder
            if attempt == _ATTEMPTS:
                raise


def make_folder(folder: str, mode: int | None = None) -> None:
    """Create a folder and its missing parents with these mode bits."""
    missing = []
    while not os.path.isdir(folder or os.curdir):
        missing.append(folder)
        folder = os.path.dirname(folder)
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError):  # a file, or another process was faster
            os.mkdir(folder)
            if mode is not None:
                os.chmod(folder, mode)
            _sync(os.path.dirname(folder))


def _write(path: str, content: bytes | BinaryIO, durable: bool, permissions: int | None) -> None:
    temporary = os.path.join(os.path.dirname(path), temporary_name())
    # Set the mode at creation: another user could open the file before a chmod.
    mode = 0o666 if permissions is None else permissions & 0o666
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
        try:
            if isinstance(content, bytes):
                file.write(content)
            else:
                content.seek(0)  # this may be another attempt
                copy_content(content, file)
            file.flush()
            if permissions is not None:
                os.fchmod(file.fileno(), permissions)
            if durable:
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    if durable:
        _sync(os.path.dirname(path))


def _sync(folder: str) -> None:
    """Force the names in a folder to disk."""
    # Some network file systems cannot do this, and a user who may write to a folder may not be allowed to read it.
    with contextlib.suppress(OSError):
        descriptor = os.open(folder or os.curdir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def copy_content(source: BinaryIO, target: BinaryIO) -> None:
    """Copy the rest of an open file into another one."""
    while chunk := source.read(_CHUNK):
        target.write(chunk)


def temporary_name() -> str:
    """Return a new name for an incomplete or obsolete file."""
    return f"{TEMPORARY}{os.urandom(8).hex()}"


# Locks


@contextlib.contextmanager
def lock_folder(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Hold a lock on a folder, unless its file system has none: one process or thread at a time.

    Raises:
        OSError: the folder cannot be opened.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        with contextlib.suppress(OSError):  # a process forked in the meantime shares the descriptor
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)

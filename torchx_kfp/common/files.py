"""Files on this machine: written whole or not at all, and reached without following links.

``write_file`` writes atomically: a reader sees the old content or the new one, whatever happens to the writer. The
content goes into a file without a name (``O_TMPFILE``), is forced to disk, and is then linked to its name, so a writer
that is killed leaves nothing behind. Linux cannot link to a name that is taken: new content for an existing file passes
for an instant through a folder ``.torchx_kfp`` next to it, which is created and removed on the way. Later writers
remove the temporary files of a writer that was killed in that instant.

``remove_unchanged`` removes a file only if it is still the old one. A writer holds a shared lock on the folder
(``flock``) while it writes; ``remove_unchanged`` takes the lock exclusively, compares the file, and unlinks it. If a
file system does not have locks on folders, or another program writes, a new file can still be lost in the instant
between the comparison and the removal.

Paths below a ``root`` are opened without following links: see ``safe_files``.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator

from torchx_kfp.common.safe_files import LIST, PASS, closing, open_at, open_folder, split_path

#: The name of the folders that temporary files pass through.
PRIVATE = ".torchx_kfp"

#: How often a write is retried: other processes may remove a folder just after this one has created it.
_ATTEMPTS = 100
#: The number of temporary files that one write checks.
_SWEEP_ENTRIES = 32
#: Seconds after which a temporary file counts as left over on file systems without locks.
_STALE_SECONDS = 3600

#: How often a folder that is being written to is retried, and the seconds in between.
_TRIES, _TRY_SECONDS = 3, 0.005
_removing = threading.Lock()

#: The errors of ``open`` if a file system or kernel does not support files without names. EPERM comes from ext4, for a
#: folder that was just removed. Any other problem appears again with a named file.
_NO_UNNAMED_FILES = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.EPERM)

#: The errors of a write if only the existing file may be changed: its folder does not accept new files, or the file is
#: mounted.
_NO_NEW_FILES = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY, errno.EXDEV)


def write_file(
    path: bytes,
    content: bytes | Iterable[bytes],
    *,
    root: bytes | None = None,
    durable: bool = True,
    permissions: int | None = None,
) -> None:
    """Write a file atomically. Missing folders are created.

    Args:
        path: an absolute path.
        content: the whole content of the file, or its parts, which may be iterated over again.
        root: a folder above the file; links below it are not followed. The default is the file's own folder.
        durable: whether to force the content and the file's name to disk, so that they survive a crash of the machine.
        permissions: the file's mode bits; by default those of a new file, under the umask.

    Raises:
        LinkError: a folder between the root and the file is a symbolic link.
        OSError: the file could not be written; it is unchanged.
    """
    root, folders, name = split_path(path, root)
    fill = functools.partial(_fill, content=content, durable=durable, permissions=permissions)
    made: list[bytes] = []
    try:
        for attempt in range(_ATTEMPTS):
            try:
                with _writing(root, folders, made if attempt else None) as folder:
                    if not _write_unnamed(folder, name, fill):
                        _write_named(folder, name, fill)
                    if durable:
                        _sync(folder)
                break
            except FileNotFoundError:
                if attempt + 1 == _ATTEMPTS:
                    raise
    except BaseException:
        for place in reversed(made):
            with contextlib.suppress(OSError):
                os.rmdir(place)
        raise
    if durable:
        for place in reversed(made):
            # A user who may write to a folder may not be allowed to read it.
            with contextlib.suppress(OSError), closing(os.open(os.path.dirname(place), LIST)) as above:
                _sync(above)


def write_output(path: str | os.PathLike[str], content: bytes) -> None:
    """Write the file that a user has named for some output; its folder must exist.

    The file is written atomically and keeps its permissions. Links are followed. Devices and pipes, such as
    ``/dev/stdout``, are written in place, and so are existing files in a folder that does not accept new ones.

    Raises:
        OSError: the file could not be written.
    """
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        mode = None
    in_place = os.path.abspath(path).startswith(("/dev/", "/proc/")) or (mode is not None and not stat.S_ISREG(mode))
    if not in_place:
        place = os.path.realpath(path)
        try:
            os.stat(os.path.dirname(place))
            permissions = None if mode is None else stat.S_IMODE(mode)
            write_file(os.fsencode(place), content, permissions=permissions)
            return
        except OSError as error:
            if mode is None or error.errno not in _NO_NEW_FILES:
                raise
    with open(path, "wb") as file:
        file.write(content)


def remove_file(path: bytes, root: bytes) -> None:
    """Remove a file below a root; a missing file is not an error.

    Raises:
        LinkError: a folder between the root and the file is a symbolic link.
        OSError: the file could not be removed.
    """
    root, folders, name = split_path(path, root)
    with contextlib.suppress(FileNotFoundError), closing(open_folder(root, folders)) as folder:
        os.unlink(name, dir_fd=folder)


def remove_unchanged(path: bytes, root: bytes, size: int, modified: float) -> bool:
    """Remove a file below a root if it still has this size and this time, and no process is writing in its folder.

    Returns:
        Whether the file is gone.

    Raises:
        LinkError: a folder between the root and the file is a symbolic link.
        OSError: the file could not be removed.
    """
    root, folders, name = split_path(path, root)
    try:
        descriptor = open_folder(root, folders, readable=True)
    except FileNotFoundError:
        return True
    try:
        # Otherwise, threads of this process would interfere with each other.
        with _removing:
            if not _lock_exclusively(descriptor):
                return False
            state = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            if (state.st_size, state.st_mtime) != (size, modified):
                return False
            os.unlink(name, dir_fd=descriptor)
            return True
    except FileNotFoundError:
        return True
    finally:
        _unlock(descriptor)


def remove_empty_folders(path: bytes, root: bytes) -> None:
    """Remove the folders between the root and a path that are empty, the innermost first."""
    root, folders, _ = split_path(path, root)
    while folders:
        *folders, name = folders
        try:
            with closing(open_folder(root, folders)) as above:
                os.rmdir(name, dir_fd=above)
        except OSError:  # it is not empty, or another process was faster
            return


@contextlib.contextmanager
def _writing(root: bytes, folders: list[bytes], made: list[bytes] | None) -> Iterator[int]:
    """Open a folder to write to, and keep ``remove_unchanged`` out of it meanwhile.

    Raises:
        FileNotFoundError: the folder does not exist, or was removed meanwhile.
    """
    try:
        descriptor = open_folder(root, folders, readable=True, made=made)
    except PermissionError:  # a user who may write to a folder may not be allowed to read it
        with closing(open_folder(root, folders, made=made)) as folder:
            yield folder
        return
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        if os.fstat(descriptor).st_nlink == 0:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), root)
        yield descriptor
    finally:
        _unlock(descriptor)


def _lock_exclusively(descriptor: int) -> bool:
    """Lock a folder; return False if a process is writing in it. On a file system without locks, go on."""
    for attempt in range(_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if attempt + 1 < _TRIES:
                time.sleep(_TRY_SECONDS)
        except OSError:
            return True
    return False


def _unlock(descriptor: int) -> None:
    """Unlock and close a folder. A process that was forked meanwhile also has it open, and would keep the lock."""
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def _write_unnamed(folder: int, name: bytes, fill: Callable[[int], None]) -> bool:
    """Write through a file without a name; return False if that is not possible."""
    flags = getattr(os, "O_TMPFILE", None)
    if flags is None:
        return False
    try:
        descriptor = os.open(b".", flags | os.O_WRONLY | os.O_CLOEXEC, 0o666, dir_fd=folder)
    except OSError as error:
        if error.errno in _NO_UNNAMED_FILES:
            return False
        raise
    with closing(descriptor):
        fill(descriptor)
        try:
            _link(descriptor, folder, name)
        except FileExistsError:
            _lock(descriptor)
            _replace(folder, name, lambda private, temporary: _link(descriptor, private, temporary))
        except OSError:
            return False  # there is no /proc, or a sandbox; a lasting problem appears again with a named file
        return True


def _write_named(folder: int, name: bytes, fill: Callable[[int], None]) -> None:
    def create(private: int, temporary: bytes) -> None:
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
        descriptor = os.open(temporary, flags, 0o666, dir_fd=private)
        descriptors.append(descriptor)
        _lock(descriptor)
        fill(descriptor)

    descriptors: list[int] = []
    try:
        _replace(folder, name, create)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _replace(folder: int, name: bytes, place: Callable[[int, bytes], None]) -> None:
    """Let ``place`` put a complete file with a temporary name into the private folder, and rename that file."""
    temporary = os.urandom(8).hex().encode()
    try:
        for attempt in range(_ATTEMPTS):
            try:
                with closing(open_at(folder, PRIVATE.encode(), PASS)) as private:
                    try:
                        place(private, temporary)
                        os.replace(temporary, name, src_dir_fd=private, dst_dir_fd=folder)
                        return
                    except BaseException:
                        with contextlib.suppress(OSError):
                            os.unlink(temporary, dir_fd=private)
                        raise
            except FileNotFoundError:
                if attempt + 1 == _ATTEMPTS:
                    raise
                with contextlib.suppress(FileExistsError):
                    os.mkdir(PRIVATE, dir_fd=folder)
    finally:
        _tidy(folder)


def _link(descriptor: int, folder: int, name: bytes) -> None:
    # With a dst_dir_fd, Python calls linkat(AT_SYMLINK_FOLLOW), which /proc needs.
    os.link(f"/proc/self/fd/{descriptor}", name, dst_dir_fd=folder)


def _fill(descriptor: int, content: bytes | Iterable[bytes], durable: bool, permissions: int | None) -> None:
    for part in (content,) if isinstance(content, bytes) else content:
        rest = memoryview(part)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    if permissions is not None:
        os.fchmod(descriptor, permissions)
    if durable:
        os.fsync(descriptor)


def _lock(descriptor: int) -> None:
    """Show other writers that this one is alive; the kernel releases the lock when the process ends."""
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _tidy(folder: int) -> None:
    """Remove the private folder, and the files that killed writers left in it."""
    try:
        os.rmdir(PRIVATE, dir_fd=folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            return
        with contextlib.suppress(OSError), closing(open_at(folder, PRIVATE.encode(), LIST)) as private:
            for name in os.listdir(private)[:_SWEEP_ENTRIES]:
                with contextlib.suppress(OSError):
                    _sweep(private, name)
        with contextlib.suppress(OSError):
            os.rmdir(PRIVATE, dir_fd=folder)


def _sweep(private: int, name: str) -> None:
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    with closing(os.open(name, flags, dir_fd=private)) as descriptor:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        except OSError:
            if time.time() - os.fstat(descriptor).st_mtime < _STALE_SECONDS:
                return
    os.unlink(name, dir_fd=private)


def _sync(folder: int) -> None:
    with contextlib.suppress(OSError):  # some network file systems cannot do this
        os.fsync(folder)

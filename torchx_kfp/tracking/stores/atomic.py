"""Writing a local file whole: readers see the old content or the new one, whatever happens to the writer.

Removing one that is old takes nothing that is new: a writer holds a lock on the folder (``flock``, shared) while it
writes, and what removes a file holds it alone, looks whether the file is still the old one, and unlinks it. Where a
file system has no locks on folders, or another program writes, an instant is left between the look and that.

The content goes into a file without a name (``O_TMPFILE``), is forced to disk, and is then linked under its
name. So a writer that is killed leaves nothing behind. Linux cannot link over a name that is taken: new
content for an existing file passes for an instant through a folder ``.torchx_kfp`` beside it, which is made and
removed on the way. What a writer that was killed in that instant left there, later writers remove.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator

from torchx_kfp.tracking.stores.keys import PRIVATE

#: Other writers may remove an empty folder just after this one has made it.
_ATTEMPTS = 100
#: Left-over files that one put looks at.
_SWEEP_ENTRIES = 32
#: Seconds after which a temporary file counts as left over where the file system has no locks that would tell.
_STALE_SECONDS = 3600

#: How often a folder in which somebody writes is tried again, and seconds between: two may remove files at once.
_TRIES, _TRY_SECONDS = 3, 0.005
_removing = threading.Lock()

#: ``open`` fails so where a file system or kernel has no files without names; EPERM: ext4, in a folder that has just
#: been removed. What else is wrong shows again with a named file.
_NO_UNNAMED_FILES = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.EPERM)


def write_file(path: bytes, content: bytes) -> None:
    """Make this the content of the file, atomically and durably, and make its folders where they are missing.

    Raises:
        OSError: the file could not be written. It is as it was before.
    """
    folder = os.path.dirname(path)
    made: list[bytes] = []
    try:
        for attempt in range(_ATTEMPTS):
            try:
                with _writing(folder):
                    if not _write_unnamed(folder, path, content):
                        _write_named(folder, path, content)
                break
            except FileNotFoundError:
                if attempt + 1 == _ATTEMPTS:
                    raise
                _make_folders(folder, made)
    except BaseException:
        for place in reversed(made):
            with contextlib.suppress(OSError):
                os.rmdir(place)
        raise
    for place in dict.fromkeys([folder, *(os.path.dirname(place) for place in reversed(made))]):
        _sync_folder(place)


def remove_file(path: bytes, size: int, modified: float) -> bool:
    """Remove the file if it still has this size and time of change, and nobody is writing in its folder.

    Returns:
        Whether it is gone.

    Raises:
        OSError: the file could not be removed.
    """
    try:
        descriptor = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        # Threads of one process would be in each other's way.
        with _removing:
            if not _lock_alone(descriptor):
                return False
            state = os.stat(path)
            if (state.st_size, state.st_mtime) != (size, modified):
                return False
            os.unlink(path)
            return True
    except FileNotFoundError:
        return True
    finally:
        _unlock(descriptor)


def _lock_alone(descriptor: int) -> bool:
    """Lock the folder for this process alone; False where somebody writes in it. Where there are no locks, go on."""
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


@contextlib.contextmanager
def _writing(folder: bytes) -> Iterator[None]:
    """Keep files from being removed from the folder meanwhile.

    Raises:
        FileNotFoundError: the folder is not there, or is another one by now.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:  # a folder that may be written need not be readable
        yield
        return
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        if not os.path.samestat(os.fstat(descriptor), os.stat(folder)):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), folder)
        yield
    finally:
        _unlock(descriptor)


def _unlock(descriptor: int) -> None:
    """Close the folder. A process that was forked meanwhile has it open, too, and would keep the lock."""
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def _write_unnamed(folder: bytes, path: bytes, content: bytes) -> bool:
    """Write through a file without a name; False where that does not work here."""
    flags = getattr(os, "O_TMPFILE", None)
    if flags is None:
        return False
    try:
        descriptor = os.open(folder, flags | os.O_WRONLY | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno in _NO_UNNAMED_FILES:
            return False
        raise
    try:
        _fill(descriptor, content)
        try:
            _link(descriptor, path)
        except FileExistsError:
            _lock(descriptor)
            _replace(folder, path, lambda temporary: _link(descriptor, temporary))
        except OSError:
            return False  # no /proc, or a sandbox: what is wrong for good shows again with a named file
        return True
    finally:
        os.close(descriptor)


def _write_named(folder: bytes, path: bytes, content: bytes) -> None:
    def create(temporary: bytes) -> None:
        descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666)
        descriptors.append(descriptor)
        _lock(descriptor)
        _fill(descriptor, content)

    descriptors: list[int] = []
    try:
        _replace(folder, path, create)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _replace(folder: bytes, path: bytes, place: Callable[[bytes], None]) -> None:
    """Let ``place`` put a complete file under a temporary name, and rename that to the path."""
    private = os.path.join(folder, PRIVATE.encode())
    temporary = os.path.join(private, os.urandom(8).hex().encode())
    try:
        for attempt in range(_ATTEMPTS):
            try:
                place(temporary)
                break
            except FileNotFoundError:
                if attempt + 1 == _ATTEMPTS:
                    raise
                with contextlib.suppress(FileExistsError):
                    os.mkdir(private)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    finally:
        _tidy(private)


def _link(descriptor: int, path: bytes) -> None:
    # A src_dir_fd makes Python call linkat(AT_SYMLINK_FOLLOW), which /proc needs; the path is absolute all the same.
    os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=descriptor)


def _fill(descriptor: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
    os.fsync(descriptor)


def _lock(descriptor: int) -> None:
    """Show later writers that this one lives; the kernel takes the lock away with the process."""
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _tidy(private: bytes) -> None:
    """Remove the folder of temporary files, and first what killed writers left in it."""
    try:
        os.rmdir(private)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            return
        with contextlib.suppress(OSError), os.scandir(private) as entries:
            for entry, _ in zip(entries, range(_SWEEP_ENTRIES), strict=False):
                with contextlib.suppress(OSError):
                    _sweep(entry)
        with contextlib.suppress(OSError):
            os.rmdir(private)


def _sweep(entry: os.DirEntry[bytes]) -> None:
    descriptor = os.open(entry.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    except OSError:
        if time.time() - entry.stat().st_mtime < _STALE_SECONDS:
            return
    finally:
        os.close(descriptor)
    os.unlink(entry.path)


def _make_folders(folder: bytes, made: list[bytes]) -> None:
    """Make the folder and what is missing above it; ``made`` gets those that were not there, outermost first."""
    missing = [folder]
    for _ in range(2 * folder.count(b"/") + _ATTEMPTS):
        if not missing:
            return
        try:
            os.mkdir(missing[-1])
            made.append(missing.pop())
        except FileExistsError:
            # One look, that fails where the folder has just been removed: then the caller tries again.
            if not stat.S_ISDIR(os.stat(missing[-1]).st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), missing[-1]) from None
            missing.pop()
        except FileNotFoundError:
            missing.append(os.path.dirname(missing[-1]))
    # Somebody removes them as fast as they are made, or this place takes none, like /proc.
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), folder)


def _sync_folder(folder: bytes) -> None:
    # Some network file systems cannot do this, and a folder that may be written need not be readable.
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

"""The store in a local directory, without fsspec, which cannot write files atomically and durably."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from torchx_kfp.common.safe_files import (
    PRIVATE,
    TEMPORARY,
    UnfitFileError,
    copy_content,
    is_below,
    lock_folder,
    make_folder,
    open_regular,
    write_file,
)
from torchx_kfp.errors import CorruptResultError, TrackerBaseError, TrackerError
from torchx_kfp.tracking.store import File, Store

T = TypeVar("T")

#: The longest file name on Linux, in bytes.
_MAX_NAME = 255
#: The longest path on Linux, in bytes.
_MAX_PATH = 4095
#: The number of concurrent calls, for network file systems.
_THREADS = 8


class DiskStore(Store):
    """A store with one file for each key, below a directory.

    Only files in the directory are read: a link out of it, perhaps another user's, is not a result. Listings omit
    links.

    Args:
        base: the tracker base as the user gave it.
        folder: the absolute path of the directory.
    """

    def __init__(self, base: str, folder: str) -> None:
        super().__init__(base, _THREADS)
        #: The directory as an absolute path.
        self.folder = folder.rstrip("/") or "/"

    def location(self, key: str) -> str:
        return os.path.join(self.folder, key)

    def _read_many(self, keys: Sequence[str], most: int) -> Iterator[bytes | CorruptResultError | None]:
        def content(path: str) -> bytes:
            with open_regular(path, self.folder) as file:
                return file.read(min(most, os.fstat(file.fileno()).st_size))

        def read(key: str) -> bytes | CorruptResultError | None:
            try:
                return _once_more(functools.partial(content, self._path(key)))
            except FileNotFoundError:
                return None
            except OSError as error:
                problem = self.problem("read", key, error)
                if isinstance(problem, CorruptResultError):
                    return problem
                raise problem from error

        return self.each(read, keys)

    def write(self, key: str, content: bytes) -> None:
        """Write the key's file atomically and durably."""
        try:
            _once_more(lambda: write_file(self._path(key), content, folder_mode=self._folder_mode()))
        except OSError as error:
            raise self.problem("write", key, error) from error

    @contextlib.contextmanager
    def locked(self, key: str) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError, TrackerError):  # the write reports problems with the place
                folder = os.path.dirname(self._path(key))
                make_folder(folder, self._folder_mode())
                stack.enter_context(lock_folder(folder))
            yield

    def _folder_mode(self) -> int | None:
        """Return the permissions of the base, for new folders: stages of other users may have to write there."""
        with contextlib.suppress(FileNotFoundError):
            return os.stat(self.folder).st_mode & 0o2777
        return None

    def put_files(self, files: Mapping[str, tuple[str, int]]) -> None:
        """Copy files atomically. A crash of the machine may lose them, which their digests reveal."""
        for key, (path, _) in files.items():
            try:
                with open(path, "rb", buffering=0) as file:
                    write_file(self._path(key), file, durable=False, folder_mode=self._folder_mode())
            except OSError as error:
                raise self.problem("write", key, error) from error

    def get_files(self, files: Mapping[str, tuple[str, int]]) -> None:
        for key, (path, _) in files.items():
            try:
                source = open_regular(self._path(key), self.folder)
            except FileNotFoundError:
                raise
            except OSError as error:
                raise self.problem("read", key, error) from error
            with source, open(path, "wb") as copy:
                copy_content(source, copy)

    def remove(self, key: str) -> None:
        """Remove a file, and folders that become empty."""
        try:
            os.unlink(self._path(key))
        except FileNotFoundError:
            return
        except OSError as error:
            raise self.problem("remove", key, error) from error
        self._remove_empty_folders(key)

    def _remove_empty_folders(self, key: str) -> None:
        """Remove the empty folders of a key, innermost first."""
        while key := key.rpartition("/")[0]:
            try:
                os.rmdir(self._path(key))
            except OSError:  # not empty, or removed by another process
                return

    def list_files(self, prefix: str = "", *, private: bool = True) -> list[File]:
        try:
            return sorted(
                File(key, state.st_size, state.st_mtime)
                for key, state in self._walk(prefix, private=private)
                if (stat.S_ISREG(state.st_mode) or (private and stat.S_ISLNK(state.st_mode)))
                and not key.rpartition("/")[2].startswith(TEMPORARY)
            )
        except OSError as error:
            raise self.problem("list", prefix, error) from error

    def _path(self, key: str) -> str:
        # Names on disk are UTF-8, whatever the process's locale is.
        path = self.location(os.fsdecode(key.encode()))
        # Other programs could not open a longer path.
        if len(os.fsencode(path)) > _MAX_PATH or any(len(name.encode()) > _MAX_NAME for name in key.split("/")):
            limits = f"file systems allow names of {_MAX_NAME} bytes, and paths of {_MAX_PATH:,}"
            raise self.problem("use", key, OSError(errno.ENAMETOOLONG, limits))
        return path

    def _walk(self, prefix: str, *, private: bool = True) -> Iterator[tuple[str, os.stat_result]]:
        """Yield all files at or below the prefix, with their status.

        Args:
            prefix: a key; empty for the whole base.
            private: whether to include the tracker's own folder.
        """
        if prefix:
            try:
                state = os.lstat(path := self._path(prefix))
            except (FileNotFoundError, NotADirectoryError):
                return
            if not is_below(os.path.realpath(path), os.path.realpath(self.folder)):
                return
            if not stat.S_ISDIR(state.st_mode):
                yield prefix, state
                return
        waiting = [prefix]  # no recursion: keys may be nested deeper than Python's stack
        while waiting:
            key = waiting.pop()
            try:
                with os.scandir(self._path(key)) as entries:
                    children = list(entries)
            except FileNotFoundError:
                continue
            except NotADirectoryError:
                if not key:
                    raise
                continue
            for entry in children:
                try:
                    name, state = os.fsencode(entry.name).decode(), entry.stat(follow_symlinks=False)
                except (FileNotFoundError, UnicodeDecodeError):  # removed in the meantime, or not a key
                    continue
                below = f"{key}/{name}" if key else name
                if not stat.S_ISDIR(state.st_mode):
                    yield below, state
                elif private or not name.startswith(PRIVATE):
                    waiting.append(below)

    def problem(self, action: str, key: str, error: BaseException) -> TrackerError:
        if isinstance(error, UnfitFileError) and stat.S_ISDIR(error.mode):
            error = IsADirectoryError(errno.EISDIR, str(error))
        if isinstance(error, UnfitFileError):
            return CorruptResultError(f"{error}, not a result. Remove it, or use another tracker base.")
        if isinstance(error, (NotADirectoryError, FileExistsError)) and not os.path.isdir(self.folder):
            return TrackerBaseError(
                f"Cannot {action} {self.location(key)}: the tracker base {self.base!r} is not a directory, "
                "or lies below a file. Name a directory, or a place where one can be made."
            )
        return super().problem(action, key, error)


def _once_more(action: Callable[[], T]) -> T:
    """Return the action's value; try again once if another NFS client has just replaced the file."""
    try:
        return action()
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
        return action()

"""The store in a local directory. It does not use fsspec, which cannot write a file atomically and durably."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Container, Iterable, Iterator

from torchx_kfp.common.files import remove_empty_folders, remove_file, remove_unchanged, write_file
from torchx_kfp.common.safe_files import LinkError, open_file, open_folder, special_kind
from torchx_kfp.common.text import shown
from torchx_kfp.errors import CorruptResultError, KeyRefusedError, TrackerBaseError, TrackerError
from torchx_kfp.tracking.store import PRIVATE, Concurrency, File, Store, copy_bytes

#: The bytes that Linux's file systems allow in one name.
_MAX_NAME = 255
#: The bytes that Linux allows in a path.
_MAX_PATH = 4095
#: This suits network file systems. A local one answers faster than threads are switched, so a thread makes a few calls
#: in a row.
_CONCURRENCY = Concurrency(threads=8, batch=16)


class DiskStore(Store):
    """A store with one file for each key, below a directory.

    The directory may be reached through symbolic links. Links below it are not followed: a stage in a container that
    shares the directory could otherwise make other stages read and write elsewhere. Listings leave links out.

    Args:
        base: the tracker base as the user gave it.
        folder: the absolute path of the directory.
        patience: seconds for which a call that fails for a moment is tried again, as network file systems do.
    """

    def __init__(self, base: str, folder: str, patience: float) -> None:
        super().__init__(base, patience, _CONCURRENCY)
        self._folder = folder.rstrip("/")
        # Names on disk are UTF-8, whatever the process's locale is.
        self._root = os.fsencode(self._folder) or b"/"
        self._prefix = os.fsencode(self._folder) + b"/"

    @property
    def folder(self) -> str:
        """The directory as an absolute path."""
        return self._folder or "/"

    def location(self, key: str) -> str:
        return f"{self._folder}/{key}"

    def read(self, key: str, most: int | None = None) -> bytes | None:
        try:
            return self._tried("read", key, lambda: self._read(self._path(key), most))
        except FileNotFoundError:
            if any(len(name.encode()) > _MAX_NAME for name in key.split("/")):
                raise self._too_long(key) from None
            return None
        except OSError as error:
            raise self._problem("read", key, error) from error

    def write(self, key: str, content: bytes) -> None:
        """Write the key's file atomically and durably."""
        try:
            self._tried("write", key, lambda: write_file(self._path(key), content, root=self._root))
        except OSError as error:
            raise self._problem("write", key, error) from error

    def write_parts(self, key: str, parts: Iterable[bytes]) -> None:
        """Write the key's file atomically. A crash of the machine may lose it, which its digest shows."""
        try:
            self._tried("write", key, lambda: write_file(self._path(key), parts, root=self._root, durable=False))
        except OSError as error:
            raise self._problem("write", key, error) from error

    def fetch(self, key: str, size: int, path: str) -> None:
        try:
            with open(self._open(self._path(key)), "rb", buffering=0) as file, open(path, "wb") as copy:
                copy_bytes(file, copy, size, self.part)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self._problem("read", key, error) from error

    def remove(self, key: str) -> None:
        """Remove the key's file, if it exists, and the folders that are empty afterwards."""
        try:
            remove_file(self._path(key), self._root)
        except OSError as error:
            raise self._problem("remove", key, error) from error
        remove_empty_folders(self._path(key), self._root)

    def remove_old(self, file: File) -> bool:
        """Remove a file unless it was written since it was listed, and the folders that are empty afterwards."""
        path = self._path(file.key)
        try:
            if not remove_unchanged(path, self._root, file.size, file.modified):
                return False
        except OSError as error:
            raise self._problem("remove", file.key, error) from error
        remove_empty_folders(path, self._root)
        return True

    def keys(self, prefix: str | None) -> list[str]:
        try:
            return sorted(self._walk(b"" if prefix is None else prefix.encode(), {PRIVATE.encode()}))
        except OSError as error:
            raise self._problem("list", prefix or "", error) from error

    def names(self, prefix: str | None = None, begin: str = "") -> list[str]:
        try:
            with os.scandir(self._prefix + (prefix or "").encode()) as entries:
                there = [entry for entry in entries if entry.name != PRIVATE.encode() and not entry.is_symlink()]
                there = [entry for entry in there if entry.name.startswith(begin.encode())]
                return sorted(os.fsdecode(entry.name) + "/" * entry.is_dir() for entry in there)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._problem("list", prefix or "", error) from error

    def files(self, prefix: str = "") -> list[File]:
        """Return all files below the base, or a folder in it, including links and the tracker's own files."""
        found = []
        try:
            for key in sorted(self._walk(prefix.encode(), set(), links=True)):
                try:
                    state = os.lstat(self._path(key))
                except FileNotFoundError:  # removed since, or a temporary file
                    continue
                found.append(File(key, state.st_size, state.st_mtime))
        except OSError as error:
            raise self._problem("list", "", error) from error
        return found

    def _path(self, key: str) -> bytes:
        path = self._prefix + key.encode()
        if len(path) > _MAX_PATH:  # it could be opened name by name, but not by other programs
            raise self._too_long(key)
        return path

    def _read(self, path: bytes, most: int | None) -> bytes:
        with open(self._open(path), "rb", buffering=0 if most is None else -1) as file:
            return file.read(-1 if most is None else min(most, os.fstat(file.fileno()).st_size))

    def _open(self, path: bytes) -> int:
        try:
            descriptor = open_file(path, self._root)
        except OSError as error:
            if error.errno == errno.ENXIO or (
                isinstance(error, LinkError) and error.filename == os.path.basename(path)
            ):
                _refuse_special(path, os.lstat(path).st_mode)
            raise
        try:
            mode = os.fstat(descriptor).st_mode
            if stat.S_ISDIR(mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
            _refuse_special(path, mode)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _walk(self, prefix: bytes, left_out: Container[bytes], *, links: bool = False) -> Iterator[str]:
        """Yield the keys of the files that are, or lie below, the prefix."""
        if prefix:
            try:
                os.close(open_folder(self._root, prefix.split(b"/")))
            except (FileNotFoundError, LinkError):
                return
            except NotADirectoryError:
                if os.path.isfile(self._prefix + prefix):
                    yield prefix.decode()
                return
        waiting = [prefix]  # no recursion: a key may have more parts than Python's stack allows
        while waiting:
            key = waiting.pop()
            try:
                with os.scandir(self._prefix + key) as entries:
                    found = list(entries)
            except FileNotFoundError:
                continue
            except NotADirectoryError:
                if not key:
                    raise
                continue
            for entry in found:
                try:
                    entry.name.decode()
                except UnicodeDecodeError:  # not a key of a tracker
                    continue
                below = key + b"/" + entry.name if key else entry.name
                if entry.is_dir(follow_symlinks=False):
                    if entry.name not in left_out:
                        waiting.append(below)
                elif entry.is_file(follow_symlinks=False) or (links and entry.is_symlink()):
                    yield below.decode()

    def _problem(self, action: str, key: str, error: OSError) -> TrackerError:
        if isinstance(error, LinkError):
            return KeyRefusedError(
                f"The key {shown(key)} would leave the tracker base {self.base!r}: {os.fsdecode(error.filename)!r} on "
                f"the way to {self.location(key)} is a symbolic link, and links below a tracker base are not followed. "
                "Replace it with a folder."
            )
        if error.errno == errno.ENAMETOOLONG:
            return self._too_long(key)
        if error.errno == errno.EISDIR:
            return KeyRefusedError(
                f"The key {shown(key)} is a folder of other keys: {self.location(key)} is a directory. "
                f"A file system cannot hold results there. Use another key, for example {shown(key + '/results')}."
            )
        if error.errno in (errno.ENOTDIR, errno.EEXIST):
            return self._below_a_file(action, key, error)
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return TrackerError(
                f"No permission to {action} {self.location(key)} ({error.strerror}). Make the tracker base "
                f"{self.base!r} accessible to user id {os.geteuid()}, or use another one."
            )
        return TrackerError(
            f"Cannot {action} {self.location(key)}: {error.strerror or error}. "
            f"Check the tracker base {self.base!r} and the file system that it is on."
        )

    def _too_long(self, key: str) -> KeyRefusedError:
        part = max(len(name.encode()) for name in key.split("/"))
        whole = len(self._prefix + key.encode())
        return KeyRefusedError(
            f"The key {shown(key)} is too long for the tracker base {self.base!r}: its longest part has {part:,} "
            f"bytes in UTF-8, the whole path {whole:,}. Local file systems allow {_MAX_NAME} and {_MAX_PATH:,}. "
            "Shorten it."
        )

    def _below_a_file(self, action: str, key: str, error: OSError) -> TrackerError:
        if not os.path.isdir(self._prefix):
            return TrackerBaseError(
                f"Cannot {action} {self.location(key)}: the tracker base {self.base!r} is not a directory, "
                "or lies below a file. Name a directory, or a place where one can be made."
            )
        names = key.split("/")
        for end in range(1, len(names)):
            above = "/".join(names[:end])
            if not os.path.isdir(self._path(above)):
                return KeyRefusedError(
                    f"The key {shown(key)} lies below the key {shown(above)}, which has results: "
                    f"{self.location(above)} is a file. Use a key that is not below another one."
                )
        return TrackerError(f"Cannot {action} {self.location(key)}: {error.strerror or error}.")


def _refuse_special(path: bytes, mode: int) -> None:
    if kind := special_kind(mode):
        raise CorruptResultError(
            f"{os.fsdecode(path)} is a {kind}, not a file. Something else made it. Remove it, or use another tracker "
            "base."
        )

"""Files on this machine: written whole or not at all, and reached without following links.

``write_file`` writes atomically: a reader sees the old content or the new one, whatever happens to the writer. The
content goes into a file with a temporary name in the same folder, is forced to disk, and is then renamed. A writer that
is killed leaves that file behind; its name begins with ``TEMPORARY``.

A stage in a container writes into folders of this machine, other programs write into the folders of a tracker, and a
run's folder may come from somebody else. They may contain links, pipes or devices, or get them even while this process
is looking. So a path beneath a ``root`` is opened one component at a time, and a symbolic link among them is an error.
The root itself may be a link. A stage that is a process has the runner's own rights and may use links: for its files,
``root`` is None.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from typing import BinaryIO

#: The folder for everything that a tracker keeps besides results. Names that begin with it are the tracker's own: they
#: are no part of a key, and listings of results leave them out.
PRIVATE = ".torchx_kfp"
#: What the names of files begin with that are being written.
TEMPORARY = f"{PRIVATE}-"

#: Passing through a folder does not require the permission to read it. Only Linux has ``O_PATH``.
_PASS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
#: Otherwise, opening a FIFO would block, and a terminal could become this process's controlling terminal.
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC

#: How often a write is retried: other processes may remove a folder just after this one has created it.
_ATTEMPTS = 100
_PERMISSIONS = 0o777
_CHUNK = 1 << 20
#: The levels of folders that an artifact may have.
_DEEPEST = 100
_KINDS = {stat.S_IFIFO: "FIFO", stat.S_IFSOCK: "socket", stat.S_IFLNK: "symbolic link"}


class UnfitFileError(OSError):
    """A path does not lead to a file that may be read, or leads out of its root.

    Attributes:
        place: the path of what is in the way; empty if nothing is.
        mode: the mode bits of it.
    """

    def __init__(self, message: str, place: str = "", mode: int = 0) -> None:
        super().__init__(message)
        self.place = place
        self.mode = mode


def special_kind(mode: int) -> str:
    """Return the name of a kind that is neither file nor folder: opening or reading such a thing may never end."""
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return ""
    return _KINDS.get(stat.S_IFMT(mode), "device")


def is_below(path: str, folder: str) -> bool:
    """Tell whether a path, or URL, is a folder or inside it, by its text."""
    path = path if "://" in path else os.path.normpath(path)
    return path == folder or path.startswith(os.path.join(folder, ""))


# Paths


@contextlib.contextmanager
def open_parent(path: str, root: str | None, *, make: bool = False) -> Iterator[tuple[int, str]]:
    """Open the folder of a path without following links, and yield its descriptor and the path's name in it.

    Args:
        path: an absolute path.
        root: the folder that must contain it; None if it may be anywhere, and links are followed.
        make: whether to create missing folders.

    Raises:
        UnfitFileError: something other than a folder is on the way, or the path leads out of the root.
        OSError: the folder cannot be opened or created.
    """
    *above, name = _names(path, root)
    with _closing(_descend(root or os.path.dirname(path) or os.curdir, above, make=make)) as folder:
        yield folder, name


def open_regular(path: str, root: str | None = None) -> int:
    """Open a regular file for reading, and return its descriptor.

    Args:
        path: the file's absolute path.
        root: the folder that must contain it; None if it may be anywhere, and links are followed.

    Raises:
        UnfitFileError: it is not a regular file, or leads out of the root.
        OSError: it cannot be opened.
    """
    with open_parent(path, root) as (folder, name):
        descriptor = _open_in(folder, name, _READ, path, follow=root is None)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise _unfit(path, mode)
    return descriptor


def make_folder(path: str, root: str) -> int:
    """Create a folder beneath a root, with its parents, and return an open file descriptor for it.

    Raises:
        UnfitFileError: the path leads out of the root, or something other than a folder is there.
        OSError: it cannot be created.
    """
    return _descend(root, _names(path, root), make=True, flags=_LIST)


def _names(path: str, root: str | None) -> list[str]:
    path = os.path.normpath(path)
    names = [os.path.basename(path)] if root is None else os.path.relpath(path, root).split(os.sep)
    if names[0] == os.pardir:
        raise UnfitFileError(f"{path} is not inside {root}")
    return names


def _descend(root: str, names: list[str], *, make: bool = False, flags: int = _PASS) -> int:
    """Open a folder beneath a root with these flags, and return its descriptor."""
    while make and not os.path.lexists(root):  # it is made like those below it
        root, name = os.path.split(root.rstrip("/"))
        root, names = root or os.curdir, [name, *names]
    descriptor = os.open(root, _PASS if names else flags)
    for number, name in enumerate(names, 1):
        try:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, dir_fd=descriptor)
                    _sync(descriptor)
            place = os.path.join(root, *names[:number])
            below = _open_in(descriptor, name, _PASS if number < len(names) else flags, place)
        finally:
            os.close(descriptor)
        descriptor = below
    return descriptor


def _open_in(folder: int, name: str, flags: int, place: str, *, follow: bool = False) -> int:
    try:
        return os.open(name, flags if follow else flags | os.O_NOFOLLOW, dir_fd=folder)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO):
            raise
        mode = os.stat(name, dir_fd=folder, follow_symlinks=follow).st_mode
        if stat.S_ISREG(mode):  # where a folder should be
            raise
        raise _unfit(place, mode) from None


def _unfit(place: str, mode: int) -> UnfitFileError:
    return UnfitFileError(f"{place} is a {special_kind(mode) or 'folder'}", place, mode)


@contextlib.contextmanager
def _closing(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _sync(folder: int) -> None:
    """Force the names in a folder to disk."""
    # Some network file systems cannot do this, and a user who may write to a folder may not be allowed to read it.
    with contextlib.suppress(OSError), _closing(os.open(os.curdir, _LIST, dir_fd=folder)) as readable:
        os.fsync(readable)


# Files


def write_file(
    path: str | os.PathLike[str],
    content: bytes | BinaryIO,
    *,
    root: str | None = None,
    durable: bool = True,
    permissions: int | None = None,
) -> None:
    """Write a file atomically. Missing folders are created.

    Args:
        path: an absolute path.
        content: the content of the file, or a file that is copied.
        root: a folder above the file; links below it are not followed. The default is the file's own folder.
        durable: whether to force the content and the file's name to disk, so that they survive a crash of the machine.
        permissions: the file's mode bits; by default those of a new file, under the umask.

    Raises:
        UnfitFileError: something other than a folder is between the root and the file.
        OSError: the file could not be written; it is unchanged.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            with open_parent(os.fspath(path), root, make=True) as (folder, name):
                _write(folder, name, content, durable, permissions)
            return
        except FileNotFoundError:  # another process has removed the folder
            if attempt == _ATTEMPTS:
                raise


def _write(folder: int, name: str, content: bytes | BinaryIO, durable: bool, permissions: int | None) -> None:
    temporary = temporary_name()
    # From the first byte on: another user could open the file before its mode is changed.
    mode = 0o666 if permissions is None else permissions & 0o666
    with open(os.open(temporary, _CREATE, mode, dir_fd=folder), "wb") as file:
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
            os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
            raise
    if durable:
        _sync(folder)


def copy_content(source: BinaryIO, target: BinaryIO) -> None:
    """Copy the rest of an open file into another one."""
    while chunk := source.read(_CHUNK):
        target.write(chunk)


def temporary_name() -> str:
    """Return a new name for a file that is not complete yet, or about to go."""
    return f"{TEMPORARY}{os.urandom(8).hex()}"


def read_bytes(path: str, root: str | None = None, *, limit: int) -> bytes:
    """Return the content of a file.

    Args:
        path: the file's absolute path.
        root: the folder that must contain it; None if it may be anywhere, and links are followed.
        limit: the largest size to accept, in bytes.

    Raises:
        UnfitFileError: it is not a regular file, is too large, or leads out of the root.
        OSError: it cannot be read.
    """
    with open(open_regular(path, root), "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise UnfitFileError(f"{path} is larger than {limit >> 20} MiB")
    return data


# Folders


def walk(top: str | os.PathLike[str]) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield what ``os.walk`` does, with links to folders among the files.

    Folders that cannot be read, and those whose paths are longer than the system allows, are left out.
    Before Python 3.12, that function fails in a tree that is deeper than Python's stack.
    """
    waiting = [os.fspath(top)]
    while waiting:
        place = waiting.pop()
        folders: list[str] = []
        names: list[str] = []
        try:
            with os.scandir(place) as entries:
                for entry in entries:
                    (folders if entry.is_dir(follow_symlinks=False) else names).append(entry.name)
        except OSError:
            continue
        yield place, folders, names
        waiting += [os.path.join(place, name) for name in reversed(folders)]


def remove_tree(top: str | os.PathLike[str]) -> None:
    """Remove a folder, of any depth, also if its owner has forbidden to write to folders in it.

    Raises:
        OSError: it cannot be removed.
    """
    import subprocess  # slow to load, and applications import this module

    # Python's function is recursive, and has a folder open on each level.
    rm = ["rm", "-rf", "--", top]
    done = subprocess.run(rm, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        # Not files: others may have links to them.
        closed = [os.path.abspath(top), "-type", "d", "!", "-perm", "-700"]
        chmod = ["find", *closed, "-exec", "chmod", "u+rwx", "{}", ";"]
        subprocess.run(chmod, stderr=subprocess.DEVNULL, check=False)
        done = subprocess.run(rm, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise OSError(errno.EIO, done.stderr.strip(), os.fspath(top))


def verify_tree(path: str, root: str | None = None) -> None:
    """Raise UnfitFileError unless the path is a regular file, a folder of files and folders, or missing.

    Beneath a root, links in the folder must lead to places inside it, and files must not have the set-user-id bit.
    Without a root, links may lead anywhere: their targets are checked, but the contents of a folder are not.
    """
    if root is None:
        with contextlib.suppress(FileNotFoundError):
            mode = os.stat(path).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise _unfit(path, mode)
        return
    with contextlib.suppress(FileNotFoundError), open_parent(path, root) as (folder, name):
        _verify(folder, name, path, path, 0)


def verify_content(top: str) -> None:
    """Raise UnfitFileError if a folder contains anything but files, folders and links."""
    for folder, _, names in walk(top):
        for name in names:
            path = os.path.join(folder, name)
            try:
                mode = os.lstat(path).st_mode
            except OSError:
                continue
            if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
                raise _unfit(path, mode)


def exists(path: str, root: str) -> bool:
    """Tell whether a path beneath a root exists.

    Raises:
        UnfitFileError: the path, or a folder above it, is a link.
    """
    try:
        with open_parent(path, root) as (folder, name):
            mode = os.lstat(name, dir_fd=folder).st_mode
    except FileNotFoundError:
        return False
    if stat.S_ISLNK(mode):
        raise _unfit(path, mode)
    return True


def copy(
    source: str, target: str, *, source_root: str | None = None, target_root: str | None = None, whole: bool = False
) -> None:
    """Copy a file, or a folder and its contents, with permissions, over the target.

    Args:
        source: the path of what is copied.
        target: the path of the copy.
        source_root: a folder above the source; links below it are not followed.
        target_root: the same for the target.
        whole: whether the copy has its name only when it is complete; a folder that already exists is kept.

    Raises:
        UnfitFileError: the source contains something other than files and folders, or a path leads out of its root.
        OSError: it cannot be copied.
    """
    with (
        open_parent(source, source_root) as (from_folder, from_name),
        open_parent(target, target_root, make=True) as (to_folder, to_name),
    ):
        made = temporary_name() if whole else to_name
        _copy(from_folder, from_name, to_folder, made, source, follow=source_root is None)
        if whole:
            try:
                os.rename(made, to_name, src_dir_fd=to_folder, dst_dir_fd=to_folder)
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise


def _verify(folder: int, name: str, path: str, top: str, depth: int) -> None:
    if depth > _DEEPEST:
        raise UnfitFileError(f"{top} is more than {_DEEPEST} folders deep")
    mode = os.lstat(name, dir_fd=folder).st_mode
    if stat.S_ISDIR(mode):
        with _closing(_open_in(folder, name, _LIST, path)) as descriptor:
            for entry in os.listdir(descriptor):
                _verify(descriptor, entry, os.path.join(path, entry), top, depth + 1)
    elif stat.S_ISLNK(mode) and path != top:
        if leads_out(path, top):
            raise UnfitFileError(f"{path} is a link to {os.readlink(name, dir_fd=folder)}, out of {top}")
    elif not stat.S_ISREG(mode):
        raise _unfit(path, mode)
    elif mode & stat.S_ISUID:
        raise UnfitFileError(f"{path} is a program with the set-user-id bit")


def leads_out(path: str, top: str) -> bool:
    """Tell whether a link in a folder leads out of it, or to a place that only the folder's name here leads back to."""
    to = os.readlink(path)
    by_text = os.path.normpath(os.path.join(os.path.relpath(os.path.dirname(path), top), to))
    # The target counts as well as the text: a link to the top, and .. after it, or to another link, would lead out.
    is_inside = os.path.join(os.path.realpath(path), "").startswith(os.path.join(os.path.realpath(top), ""))
    return os.path.isabs(to) or by_text.split("/")[0] == ".." or not is_inside


def _copy(from_folder: int, name: str, to_folder: int, to_name: str, shown: str, *, follow: bool) -> None:
    found = os.stat(name, dir_fd=from_folder, follow_symlinks=follow)
    permissions = stat.S_IMODE(found.st_mode) & _PERMISSIONS
    if stat.S_ISDIR(found.st_mode):
        with contextlib.suppress(FileExistsError):
            os.mkdir(to_name, dir_fd=to_folder)
        with (
            _closing(_open_in(from_folder, name, _LIST, shown, follow=follow)) as inner,
            _closing(_open_in(to_folder, to_name, _LIST, to_name)) as made,
        ):
            for entry in os.listdir(inner):
                _copy(inner, entry, made, entry, os.path.join(shown, entry), follow=follow)
            os.fchmod(made, permissions | stat.S_IRWXU)
    elif stat.S_ISREG(found.st_mode):
        with open(_open_in(from_folder, name, _READ, shown, follow=follow), "rb") as source:
            if not stat.S_ISREG(os.fstat(source.fileno()).st_mode):
                raise _unfit(shown, os.fstat(source.fileno()).st_mode)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(to_name, dir_fd=to_folder)
            with open(os.open(to_name, _CREATE, 0o600, dir_fd=to_folder), "wb") as made_file:
                copy_content(source, made_file)
                os.fchmod(made_file.fileno(), permissions | stat.S_IRUSR | stat.S_IWUSR)
    else:
        raise _unfit(shown, found.st_mode)

"""Access to files that a stage may have planted: only beneath a given folder, without links, and only regular files.

A stage in a container writes into folders of this machine. It may put links, pipes or devices there, even while this
process is looking. So the runner reads and writes in such a folder only through this module, which opens a path
component by component and rejects one that is a link. A stage that is a process has the runner's own rights and may use
links: for its files, ``root`` is None.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

from torchx_kfp.files import closing

_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW
# Otherwise, opening a pipe would block, and a terminal could become this process's controlling terminal.
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_ROOT = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FOLDER = _ROOT | _FLAGS
_PERMISSIONS = 0o777
_CHUNK = 1 << 20
#: The levels of folders that an artifact may have.
_DEEPEST = 100
_KINDS = {
    stat.S_IFIFO: "a named pipe (FIFO)",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFLNK: "a link",
    stat.S_IFDIR: "a folder",
}


class UnfitFileError(ValueError):
    """A path does not lead to a file that may be read; the message says what it leads to."""


def read_text(path: str, root: str | None = None, *, limit: int) -> str:
    """Return the text of a file.

    Args:
        path: the file's absolute path.
        root: the folder that must contain it; None if it may be anywhere, and links are followed.
        limit: the largest size to accept, in bytes.

    Raises:
        UnfitFileError: it is not a regular file, is too large, or leads out of the root.
        OSError: it cannot be read.
        UnicodeDecodeError: it is not UTF-8.
    """
    with open(_open_file(path, root), "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise UnfitFileError(f"{path} is larger than {limit >> 20} MiB")
    return data.decode("utf-8")


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
    with contextlib.suppress(FileNotFoundError), _parent(path, root) as (folder, name):
        _verify(folder, name, path, path, 0)


def verify_content(path: str) -> None:
    """Raise UnfitFileError if a folder contains anything but files, folders and links."""
    for folder, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):
                mode = os.lstat(os.path.join(folder, name)).st_mode
                if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
                    raise _unfit(os.path.join(folder, name), mode)


def exists(path: str, root: str) -> bool:
    """Tell whether a path beneath a root exists.

    Raises:
        UnfitFileError: the path, or a folder above it, is a link.
    """
    try:
        with _parent(path, root) as (folder, name):
            mode = os.lstat(name, dir_fd=folder).st_mode
    except FileNotFoundError:
        return False
    if stat.S_ISLNK(mode):
        raise _unfit(path, mode)
    return True


def copy(source: str, target: str, *, source_root: str | None = None, target_root: str | None = None) -> None:
    """Copy a file, or a folder and its contents, with permissions, over the target.

    Raises:
        UnfitFileError: the source contains something other than files and folders, or a path leads out of its root.
        OSError: it cannot be copied.
    """
    with _parent(source, source_root) as (from_folder, from_name), _parent(target, target_root, make=True) as to:
        _copy(from_folder, from_name, *to, source, follow=source_root is None)


def rename(source: str, target: str, root: str) -> None:
    """Rename a file or folder within its folder, which is beneath the root; a folder that already exists is kept.

    Raises:
        UnfitFileError: the path leads out of the root.
        OSError: it cannot be renamed.
    """
    with _parent(target, root) as (folder, name):
        try:
            os.rename(os.path.basename(source), name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise


def make_folder(path: str, root: str) -> int:
    """Create a folder beneath a root, with its parents, and return an open file descriptor for it.

    Raises:
        UnfitFileError: the path leads out of the root, or something other than a folder is there.
        OSError: it cannot be created.
    """
    return _descend(root, _names(path, root), path, make=True)


def _open_file(path: str, root: str | None) -> int:
    if root is None:
        try:
            descriptor = os.open(path, _READ)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            raise _unfit(path, os.stat(path).st_mode) from None
    else:
        with _parent(path, root) as (folder, name):
            descriptor = _open_at(folder, name, _READ | _FLAGS, path)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise _unfit(path, mode)
    return descriptor


@contextlib.contextmanager
def _parent(path: str, root: str | None, *, make: bool = False) -> Iterator[tuple[int, str]]:
    """Open the folder of a path, and yield its descriptor and the path's name in it."""
    if root is None:
        folder, name = os.path.split(os.path.normpath(path))
        if make:
            os.makedirs(folder, exist_ok=True)
        descriptor = os.open(folder, _ROOT)
    else:
        *above, name = _names(path, root)
        descriptor = _descend(root, above, path, make=make)
    with closing(descriptor):
        yield descriptor, name


def _names(path: str, root: str) -> list[str]:
    names = os.path.relpath(os.path.normpath(path), os.path.normpath(root)).split(os.sep)
    if names[0] == os.pardir:
        raise UnfitFileError(f"{path} is not inside {root}")
    return names


def _descend(root: str, names: list[str], path: str, *, make: bool) -> int:
    # The root itself is the runner's choice, and may be a link.
    descriptor = os.open(root, _ROOT)
    for name in names:
        with closing(descriptor):
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, dir_fd=descriptor)
            descriptor = _open_at(descriptor, name, _FOLDER, path)
    return descriptor


def _open_at(folder: int, name: str, flags: int, path: str) -> int:
    try:
        return os.open(name, flags, dir_fd=folder)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO):
            raise
        mode = os.lstat(name, dir_fd=folder).st_mode
        if stat.S_ISREG(mode):  # where a folder should be
            raise
        shown = path if os.path.basename(path) == name else f"{name!r} in {path}"
        raise _unfit(shown, mode) from None


def _verify(folder: int, name: str, path: str, top: str, depth: int) -> None:
    if depth > _DEEPEST:
        raise UnfitFileError(f"{top} is more than {_DEEPEST} folders deep")
    mode = os.lstat(name, dir_fd=folder).st_mode
    if stat.S_ISDIR(mode):
        with closing(_open_at(folder, name, _FOLDER, path)) as descriptor:
            for entry in os.listdir(descriptor):
                _verify(descriptor, entry, os.path.join(path, entry), top, depth + 1)
    elif stat.S_ISLNK(mode) and path != top:
        to = os.readlink(name, dir_fd=folder)
        # Check the text as well as the target: a link to a link must not lead out, either.
        if os.path.isabs(to) or not _is_in(os.path.normpath(os.path.join(os.path.dirname(path), to)), top):
            raise UnfitFileError(f"{path} is a link to {to}, out of {top}")
        if not _is_in(os.path.realpath(path), os.path.realpath(top)):
            raise UnfitFileError(f"{path} is a link that leads out of {top}")
    elif not stat.S_ISREG(mode):
        raise _unfit(path, mode)
    elif mode & stat.S_ISUID:
        raise UnfitFileError(f"{path} is a program with the set-user-id bit")


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(os.path.join(folder, ""))


def _copy(from_folder: int, name: str, to_folder: int, to_name: str, shown: str, *, follow: bool) -> None:
    found = os.stat(name, dir_fd=from_folder, follow_symlinks=follow)
    permissions = stat.S_IMODE(found.st_mode) & _PERMISSIONS
    if stat.S_ISDIR(found.st_mode):
        with contextlib.suppress(FileExistsError):
            os.mkdir(to_name, dir_fd=to_folder)
        flags = _ROOT if follow else _FOLDER
        with (
            closing(_open_at(from_folder, name, flags, shown)) as inner,
            closing(_open_at(to_folder, to_name, _FOLDER, to_name)) as made,
        ):
            for entry in os.listdir(inner):
                _copy(inner, entry, made, entry, os.path.join(shown, entry), follow=follow)
            os.fchmod(made, permissions | stat.S_IRWXU)
    elif stat.S_ISREG(found.st_mode):
        flags = _READ if follow else _READ | _FLAGS
        with open(_open_at(from_folder, name, flags, shown), "rb") as source:
            if not stat.S_ISREG(os.fstat(source.fileno()).st_mode):
                raise _unfit(shown, os.fstat(source.fileno()).st_mode)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(to_name, dir_fd=to_folder)
            made_flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS
            with open(os.open(to_name, made_flags, 0o600, dir_fd=to_folder), "wb") as made_file:
                while data := source.read(_CHUNK):
                    made_file.write(data)
                os.fchmod(made_file.fileno(), permissions | stat.S_IRUSR | stat.S_IWUSR)
    else:
        raise _unfit(shown, found.st_mode)


def _unfit(path: str, mode: int) -> UnfitFileError:
    return UnfitFileError(f"{path} is {_KINDS.get(stat.S_IFMT(mode), 'neither a file nor a folder')}")

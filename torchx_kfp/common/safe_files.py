"""Files that other programs may have planted: opened without following links.

A stage in a container writes into folders of this machine, other programs write into the folders of a tracker, and a
run's folder may come from somebody else. They may contain links, pipes or devices, or get them even while this process
is looking. So a path below a ``root`` is opened one component at a time, and a symbolic link among them is an error.
The root itself may be a link.

``open_folder`` and ``open_file`` raise LinkError for a link, and open anything else. The other functions raise
UnfitFileError, whose message says what is in the way, for anything but regular files and folders. A stage that is a
process has the runner's own rights and may use links: for its files, ``root`` is None.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterable, Iterator

#: Passing through a folder does not require the permission to read it. Only Linux has ``O_PATH``.
PASS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
#: Otherwise, opening a FIFO would block, and a terminal could become this process's controlling terminal.
READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

#: How often folders are created that other processes remove.
_ATTEMPTS = 100
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


class LinkError(OSError):
    """A path has a symbolic link where links are not followed."""


class UnfitFileError(OSError):
    """A path does not lead to a file that may be read; the message says what it leads to."""


# Descriptors


def open_file(path: bytes, root: bytes) -> int:
    """Open a file below a root for reading, and return its descriptor. It may be a FIFO or a device: check its mode.

    Raises:
        LinkError: the file, or a folder between the root and the file, is a symbolic link.
        OSError: it cannot be opened.
    """
    root, folders, name = split_path(path, root)
    folder = open_folder(root, folders)
    try:
        return open_at(folder, name, READ)
    finally:
        os.close(folder)


def open_folder(root: bytes, names: Iterable[bytes], *, readable: bool = False, made: list[bytes] | None = None) -> int:
    """Open a folder below a root without following links, and return its descriptor.

    Args:
        root: the folder to start from. It may be a link.
        names: the names of the folders below the root, the outermost first.
        readable: whether to open it for listing and locking. Otherwise, the descriptor can only be passed through.
        made: a list; missing folders are created, and their paths are added to it. By default, they are an error.

    Raises:
        LinkError: one of the folders is a symbolic link.
        OSError: the folder cannot be opened or created.
    """
    if made is not None:
        _make_root(root, made)
    names = [name for name in names if name]  # a name is empty between two slashes in a row
    last = LIST if readable else PASS
    descriptor = os.open(root, PASS if names else last)
    for number, name in enumerate(names, 1):
        try:
            if made is not None:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, dir_fd=descriptor)
                    made.append(b"/".join([root, *names[:number]]))
            below = open_at(descriptor, name, PASS if number < len(names) else last)
        finally:
            os.close(descriptor)
        descriptor = below
    return descriptor


@contextlib.contextmanager
def closing(descriptor: int) -> Iterator[int]:
    """Close a descriptor at the end of a ``with`` block."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def special_kind(mode: int) -> str:
    """Return the name of a kind that is neither file nor folder: opening or reading such a thing may never end."""
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return ""
    if stat.S_ISLNK(mode):
        return "symbolic link"
    return "FIFO" if stat.S_ISFIFO(mode) else "socket" if stat.S_ISSOCK(mode) else "device"


def split_path(path: bytes, root: bytes | None) -> tuple[bytes, list[bytes], bytes]:
    """Return the root, the names of the folders below it, and the name of the file."""
    if root is None:
        folder, name = os.path.split(path)
        return folder or b".", [], name
    *folders, name = path[len(root.rstrip(b"/")) + 1 :].split(b"/")
    return root, folders, name


def open_at(folder: int, name: bytes, flags: int) -> int:
    try:
        return os.open(name, flags | os.O_NOFOLLOW, dir_fd=folder)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise LinkError(errno.ELOOP, "It is a symbolic link", name) from None
        raise


def _make_root(root: bytes, made: list[bytes]) -> None:
    missing = [root]
    for _ in range(2 * root.count(b"/") + _ATTEMPTS):
        if not missing:
            return
        try:
            os.mkdir(missing[-1])
            made.append(missing.pop())
        except FileExistsError:  # opening it will tell whether it is a folder
            missing.pop()
        except FileNotFoundError:
            missing.append(os.path.dirname(missing[-1]) or b".")
    # Another process removes the folders as fast as they are created, or this place does not accept any, like /proc.
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), root)


# Regular files


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
    return read_bytes(path, root, limit=limit).decode("utf-8")


def read_bytes(path: str, root: str | None = None, *, limit: int) -> bytes:
    """Return the content of a file. The arguments and errors are those of ``read_text``, except for the last."""
    with open(open_regular(path, root), "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise UnfitFileError(f"{path} is larger than {limit >> 20} MiB")
    return data


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
    """Remove a folder as ``shutil.rmtree`` does, also one that is deeper than that function's recursion goes.

    Raises:
        OSError: it cannot be removed.
    """
    try:
        shutil.rmtree(top)
    except (RecursionError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (errno.EMFILE, errno.ENAMETOOLONG):
            raise
        _flatten(os.fspath(top))
        shutil.rmtree(top)


def _flatten(top: str) -> None:
    """Move the folders of a deep tree up to its top, so that no path in it is deep."""
    waiting = [(top, 0)]
    while waiting:
        place, depth = waiting.pop()
        with os.scandir(place) as entries:
            folders = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        for name in folders:
            folder = os.path.join(place, name)
            if depth >= _DEEPEST:
                moved = os.path.join(top, os.urandom(8).hex())
                os.rename(folder, moved)
                waiting.append((moved, 1))
            else:
                waiting.append((folder, depth + 1))


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


def open_regular(path: str, root: str | None = None) -> int:
    """Open a regular file for reading, and return its descriptor.

    Args:
        path: the file's absolute path.
        root: the folder that must contain it; None if it may be anywhere, and links are followed.

    Raises:
        UnfitFileError: it is not a regular file, or leads out of the root.
        OSError: it cannot be opened.
    """
    with _parent(path, root) as (folder, name):
        descriptor = _open_in(folder, name, READ, path, follow=root is None)
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
        descriptor = os.open(folder or os.curdir, LIST)
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
    try:
        made: list[bytes] | None = [] if make else None
        return open_folder(os.fsencode(root), map(os.fsencode, names), readable=True, made=made)
    except LinkError as error:
        raise UnfitFileError(_link_in(path, os.fsdecode(error.filename))) from None


def _open_in(folder: int, name: str, flags: int, path: str, *, follow: bool = False) -> int:
    try:
        return os.open(name, flags, dir_fd=folder) if follow else open_at(folder, os.fsencode(name), flags)
    except LinkError:
        raise UnfitFileError(_link_in(path, name)) from None
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ENXIO):
            raise
        mode = os.stat(name, dir_fd=folder, follow_symlinks=follow).st_mode
        if stat.S_ISREG(mode):  # where a folder should be
            raise
        raise _unfit(path, mode) from None


def _link_in(path: str, name: str) -> str:
    return f"{path if os.path.basename(path) == name else f'{name!r} in {path}'} is {_KINDS[stat.S_IFLNK]}"


def _verify(folder: int, name: str, path: str, top: str, depth: int) -> None:
    if depth > _DEEPEST:
        raise UnfitFileError(f"{top} is more than {_DEEPEST} folders deep")
    mode = os.lstat(name, dir_fd=folder).st_mode
    if stat.S_ISDIR(mode):
        with closing(_open_in(folder, name, LIST, path)) as descriptor:
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
        with (
            closing(_open_in(from_folder, name, LIST, shown, follow=follow)) as inner,
            closing(_open_in(to_folder, to_name, LIST, to_name)) as made,
        ):
            for entry in os.listdir(inner):
                _copy(inner, entry, made, entry, os.path.join(shown, entry), follow=follow)
            os.fchmod(made, permissions | stat.S_IRWXU)
    elif stat.S_ISREG(found.st_mode):
        with open(_open_in(from_folder, name, READ, shown, follow=follow), "rb") as source:
            if not stat.S_ISREG(os.fstat(source.fileno()).st_mode):
                raise _unfit(shown, os.fstat(source.fileno()).st_mode)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(to_name, dir_fd=to_folder)
            made_flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with open(os.open(to_name, made_flags, 0o600, dir_fd=to_folder), "wb") as made_file:
                while data := source.read(_CHUNK):
                    made_file.write(data)
                os.fchmod(made_file.fileno(), permissions | stat.S_IRUSR | stat.S_IWUSR)
    else:
        raise _unfit(shown, found.st_mode)


def _unfit(path: str, mode: int) -> UnfitFileError:
    return UnfitFileError(f"{path} is {_KINDS.get(stat.S_IFMT(mode), 'neither a file nor a folder')}")

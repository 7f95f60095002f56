"""The files of artifacts that a run stores under the tracker base, each with its SHA-256.

    <tracker base>/.torchx_kfp/files/<run id>/<time>-<random>/<name>    a file, or the files of a folder
    <tracker base>/.torchx_kfp/files/<run id>/<time>-<random>.json      the list of a folder's files

The list has the size and digest of each file, and the empty folders; the SHA-256 of its JSON is the digest of the
folder. Each time that something is stored, it gets a new place, and the entry that registers it is written last:
what an interrupted program leaves behind belongs to no artifact, and goes with the run (``cleanup``). S3 keeps the
parts of an interrupted upload apart, where no listing shows them, until a rule of the bucket removes them.

Links are followed, because object stores have none: a reader gets what a program that reads the folder would get.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, NamedTuple

from torchx_kfp.common.safe_files import special_kind
from torchx_kfp.common.text import describe_unknown, shown
from torchx_kfp.errors import CorruptArtifactError, MissingArtifactError, ResultRefusedError, TrackerError, explain
from torchx_kfp.tracking.store import Store, new_entry_name

#: The bytes of a small file, of which so many are on their way at once; of a large one, the driver sends parts at once.
_SMALL, _AT_ONCE = 1 << 20, 64
#: The bytes of the longest list of files that is read: those of a million files with long names.
_LONGEST_LIST = 256 << 20
#: What an entry may name as the place of files.
_KEY = re.compile(r"\.torchx_kfp/files/.+/[^/]+/(?!\.\.?$)[^/\0]+")
_DIGEST = re.compile(r"[0-9a-f]{64}")


class _Digest(NamedTuple):
    """A file's size in bytes, and its SHA-256 in hexadecimal digits."""

    size: int
    sha256: str

    @classmethod
    def parse(cls, size: object, sha256: object) -> _Digest:
        """Read what somebody has written. Raises ValueError if it is none."""
        # A file with less than no bytes would be neither copied nor checked.
        if type(size) is not int or size < 0 or not (isinstance(sha256, str) and _DIGEST.fullmatch(sha256)):
            raise ValueError(f"{size!r} and {sha256!r} are not a size and a digest")
        return cls(size, sha256)


#: The digests of files by name; a single file has an empty name.
_Digests = Mapping[str, _Digest]


@dataclass(frozen=True)
class StoredFiles:
    """A stored file or folder.

    Attributes:
        store: the store of the tracker base.
        key: its place below the tracker base.
        size: its bytes.
        sha256: the SHA-256 in hexadecimal digits, of a file, or of the list of a folder's files.
        count: the number of files in a folder; None for a file.
    """

    store: Store = field(compare=False, repr=False)
    key: str
    size: int
    sha256: str
    count: int | None = None

    @classmethod
    def parse(cls, store: Store, content: Mapping[str, Any]) -> StoredFiles:
        """Return what an entry says.

        Raises:
            KeyError, TypeError, ValueError: it does not say it.
        """
        key, count = str(content["key"]), content.get("files")
        if not _KEY.fullmatch(key) or ".." in key.split("/"):
            raise ValueError(f"{key!r} is not the place of stored files")
        return cls(
            store, key, *_Digest.parse(content["size"], content["sha256"]), None if count is None else int(count)
        )

    def encode(self) -> dict[str, object]:
        """Return what ``parse`` reads."""
        count = {} if self.count is None else {"files": self.count}
        return {"key": self.key, "size": self.size, "sha256": self.sha256, **count}

    @property
    def name(self) -> str:
        """The name of the file or folder."""
        return self.key.rpartition("/")[2]

    @property
    def url(self) -> str:
        """The path or URL of the file or folder."""
        return self.store.location(self.key)

    def sizes(self) -> dict[str, int]:
        """Return the sizes of the files in bytes, by their names in the folder; the name of a single file is empty."""
        return {name: file.size for name, file in self._contents()[0].items()}

    def are_there(self) -> bool:
        """Tell whether the store has as many files of this size, and the list of a folder's; they are not read."""
        sizes = [file.size for file in self.store.list_files(self.key.rpartition("/")[0])]
        is_listed = self.count is None or bool(self.store.list_files(self._list_key))
        return is_listed and len(sizes) == (1 if self.count is None else self.count) and sum(sizes) == self.size

    def open(self, name: str = "") -> BinaryIO:
        """Open a file, after it was copied to this machine and checked: see ``Artifact.open``."""
        files, _ = self._contents()
        if name not in files:
            if not name:
                raise MissingArtifactError(
                    f"{self.url} is a folder of {self.count:,} files. Name one of them, such as "
                    f"open({next(iter(files), 'file')!r}), or copy all of them with download(folder)."
                )
            raise MissingArtifactError(describe_unknown(f"The artifact at {self.url}", "file", name, files))
        with tempfile.TemporaryDirectory(prefix="torchx-kfp-artifact-") as folder:
            place = os.path.join(folder, "content")
            self._fetch({name: files[name]}, lambda _: place)
            return open(place, "rb")  # the open file outlives its name

    def download(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> str:
        """Copy the files to this machine, and check them: see ``Artifact.download``."""
        os.makedirs(folder, exist_ok=True)
        target = os.path.join(os.fspath(folder), self.name)
        with _locked(folder):
            if os.path.lexists(target):
                if self._is_at(target):
                    return target
                if not overwrite:
                    raise FileExistsError(
                        f"{target} exists, and is not the artifact at {self.url}. Name another folder, or overwrite it."
                    )
            files, folders = self._contents()
            with tempfile.TemporaryDirectory(prefix=".", suffix=".part", dir=folder) as temporary:
                copy = os.path.join(temporary, "copy")
                if self.count is not None:
                    for name in ("", *folders, *map(os.path.dirname, files)):
                        os.makedirs(os.path.join(copy, name), exist_ok=True)
                self._fetch(files, lambda name: os.path.join(copy, name) if name else copy)
                if os.path.lexists(target) and (self.count is not None or os.path.isdir(target)):
                    os.replace(target, os.path.join(temporary, "old"))
                os.replace(copy, target)
        return target

    @property
    def _list_key(self) -> str:
        return f"{self.key.rpartition('/')[0]}.json"

    def _contents(self) -> tuple[_Digests, list[str]]:
        """Return the digests of the files, and the empty folders."""
        if self.count is None:
            return {"": _Digest(self.size, self.sha256)}, []
        content = self.store.read(self._list_key, _LONGEST_LIST)
        if content is None:
            raise self._gone()
        if (found := hashlib.sha256(content).hexdigest()) != self.sha256:
            raise self._changed(self._list_key, f"the SHA-256 {found}", self.sha256)
        return _parse_list(content)

    def _is_at(self, path: str) -> bool:
        """Tell whether a file or folder on this machine has the same content."""
        try:
            states = _list_local(path)
            if sum(state[0] for state in states.values()) != self.size:
                return False
            files = _hash_all(_paths(path, states))
        except (OSError, ResultRefusedError):
            return False
        whole = files[""].sha256 if "" in files else hashlib.sha256(_encode_list(files, states)).hexdigest()
        return whole == self.sha256

    def _fetch(self, files: _Digests, place: Callable[[str], str]) -> None:
        """Copy files to their places on this machine, and check their digests.

        Raises:
            MissingArtifactError: a file was removed.
            CorruptArtifactError: a file was changed.
        """
        keys = {name: f"{self.key}/{name}" if name else self.key for name in files}
        # The record may be wrong, and a file huge.
        place_of_all = next(iter(keys.values())) if len(files) == 1 else self.key
        there = {file.key: file.size for file in self.store.list_files(place_of_all)}
        for name, wanted in files.items():
            if (size := there.get(keys[name])) is None:
                raise self._gone()
            if size != wanted.size:
                raise self._changed(keys[name], f"{size:,} bytes", f"{wanted.size:,}")
        try:
            for group, at_once in _groups({name: file.size for name, file in files.items()}):
                self.store.get_files({keys[name]: place(name) for name in group}, at_once)
        except FileNotFoundError:
            raise self._gone() from None
        for name, wanted in files.items():
            if (found := _hash(place(name)).sha256) != wanted.sha256:
                raise self._changed(keys[name], f"the SHA-256 {found}", wanted.sha256)

    def _gone(self) -> MissingArtifactError:
        return MissingArtifactError(
            f"The files of the artifact at {self.url} are not there any more. If they were removed (torchx-kfp gc), "
            "run the stage again that made them."
        )

    def _changed(self, key: str, found: str, wanted: str) -> CorruptArtifactError:
        return CorruptArtifactError(
            f"{self.store.location(key)} has {found} instead of {wanted}: it was changed. Run the stage again that "
            "made it."
        )


def store_files(store: Store, folder: str, name: str, path: str) -> StoredFiles:
    """Store a file or folder of this machine.

    Args:
        store: the store of the tracker base.
        folder: the folder below the base for everything that the run stores.
        name: the artifact's name, for messages.
        path: a local path, or a ``file://`` URL.

    Raises:
        ResultRefusedError: it does not exist, is not a file or folder, has something that cannot be stored, or has
            changed meanwhile. Nothing was stored.
        TrackerError: the store failed. What has been stored is removed, if that is possible.
    """
    top = os.path.abspath(os.path.expanduser(path.removeprefix("file://")))
    if not path or "://" in path.removeprefix("file://"):
        raise ResultRefusedError(
            f"The artifact {name!r} cannot be stored: {shown(path)} is not a path on this machine. Leave out "
            "store=True to register what is elsewhere."
        )
    try:
        before = _list_local(top)
        paths = _paths(top, before)
        files = _hash_all(paths)
    except OSError as error:
        raise ResultRefusedError(f"The artifact {name!r} cannot be stored: {explain(error)}.") from None
    place = f"{folder}/{new_entry_name()}"
    key = f"{place}/{os.path.basename(top) or 'files'}"
    try:
        try:
            for group, at_once in _groups({name: file.size for name, file in files.items()}):
                store.put_files({f"{key}/{name}" if name else key: paths[name] for name in group}, at_once)
        finally:
            _verify_unchanged(top, before)  # a file that is gone is not the store's fault
        if "" in before:
            return StoredFiles(store, key, *files[""])
        listing = _encode_list(files, before)
        store.write(f"{place}.json", listing)
        size = sum(file.size for file in files.values())
        return StoredFiles(store, key, size, hashlib.sha256(listing).hexdigest(), len(files))
    except BaseException as error:
        with contextlib.suppress(TrackerError):
            for _ in store.remove_many(store.list_files(place)):
                pass
        if isinstance(error, FileNotFoundError):
            raise _unstable(error.filename or top) from None
        raise


def _encode_list(files: _Digests, names: Iterable[str]) -> bytes:
    """Return the list of a folder's files, and of the empty folders among the names, which end with a slash."""
    content = {"files": files, "folders": sorted(name for name in names if name.endswith("/"))}
    return json.dumps(content, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()


def _parse_list(content: bytes) -> tuple[_Digests, list[str]]:
    """Read a list whose digest was checked. Its writer may be anybody who can write to the tracker base.

    Raises:
        CorruptArtifactError: a name would lead out of the folder, or it is not a list of files.
    """
    try:
        found = json.loads(content)
        files = {name: _Digest.parse(*file) for name, file in found["files"].items()}
        for name in (*files, *(folder.removesuffix("/") for folder in found["folders"])):
            if b"\0" in name.encode() or not {"", ".", ".."}.isdisjoint(name.split("/")):
                raise ValueError(name)
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise CorruptArtifactError(
            f"A list of stored files is malformed: {error!r}. Something else wrote it."
        ) from None
    return files, found["folders"]


#: What changes when a file on this machine does: its size, its time of change, and its inode.
_State = tuple[int, int, int]


def _list_local(top: str) -> dict[str, _State]:
    """Return the files of a folder, and its empty folders, by relative names; a file has an empty name.

    Raises:
        ResultRefusedError: it has something that cannot be stored.
        OSError: it cannot be read, or a link leads nowhere.
    """
    found: dict[str, _State] = {}
    waiting: list[tuple[str, tuple[tuple[int, int], ...]]] = [("", ())]
    while waiting:
        name, above = waiting.pop()
        path = os.path.join(top, name) if name else top
        state = os.stat(path)
        if kind := special_kind(state.st_mode):
            raise ResultRefusedError(f"{shown(path)} cannot be stored: it is a {kind}. Store files and folders only.")
        if not stat.S_ISDIR(state.st_mode):
            found[name] = state.st_size, state.st_mtime_ns, state.st_ino
            continue
        own = state.st_dev, state.st_ino
        if own in above:
            raise ResultRefusedError(f"{shown(path)} cannot be stored: it is a link to a folder that it is in.")
        inner = sorted(os.listdir(path))
        if name and not inner:
            found[f"{name}/"] = 0, 0, 0
        for each in inner:
            try:
                each.encode()
            except UnicodeEncodeError:
                raise ResultRefusedError(
                    f"{os.fsencode(os.path.join(path, each))!r} cannot be stored: the name is not UTF-8. Rename it."
                ) from None
            waiting.append((f"{name}/{each}" if name else each, (*above, own)))
    return dict(sorted(found.items()))


def _paths(top: str, names: Iterable[str]) -> dict[str, str]:
    """Return the paths of the files among these names."""
    return {name: os.path.join(top, name) if name else top for name in names if not name.endswith("/")}


def _hash_all(paths: Mapping[str, str]) -> _Digests:
    return {name: _hash(path) for name, path in paths.items()}


def _hash(path: str) -> _Digest:
    size, digest = 0, hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(1 << 20):
            size += len(chunk)
            digest.update(chunk)
    return _Digest(size, digest.hexdigest())


def _verify_unchanged(top: str, before: Mapping[str, _State]) -> None:
    """Check that the files are those of before.

    Raises:
        ResultRefusedError: a file has changed, is gone, or is new.
    """
    after = _list_local(top)
    if different := [name for name in {**before, **after} if before.get(name) != after.get(name)]:
        raise _unstable(os.path.join(top, different[0]))


def _unstable(path: str) -> ResultRefusedError:
    return ResultRefusedError(
        f"{shown(path)} changed while it was stored, so nothing was registered. Store it when it is complete."
    )


def _groups(sizes: Mapping[str, int]) -> Iterator[tuple[list[str], int]]:
    """Yield the names of small files, and of large ones, with how many of them may be on their way at once."""
    small = [name for name, size in sizes.items() if size <= _SMALL]
    large = [name for name, size in sizes.items() if size > _SMALL]
    yield from ((names, at_once) for names, at_once in ((small, _AT_ONCE), (large, 1)) if names)


@contextlib.contextmanager
def _locked(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Let one process or thread at a time put files into a folder: the others find what the first one has copied."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)

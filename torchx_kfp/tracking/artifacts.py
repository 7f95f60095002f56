"""Artifacts: files and folders that an execution registered, or stored under the tracker base, each with its SHA-256.

    <tracker base>/.torchx_kfp/files/<execution id>/<time>-<random>/<name>  a file, or the files of a folder
    <tracker base>/.torchx_kfp/files/<execution id>/<time>-<random>.json    the list of a folder's files

The list has the size and digest of each file, and the empty folders. The SHA-256 of its JSON is the folder's digest.
Every upload gets a new location, and the entry that registers it is written last, so files of an interrupted program
belong to no artifact. They are removed with those of the pipeline run. S3 keeps the parts of an interrupted upload,
which no listing shows, until a rule of the bucket removes them.

Symbolic links are followed, because object stores do not have any.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, NamedTuple

from torchx_kfp.common.safe_files import lock_folder, special_kind
from torchx_kfp.common.text import describe_unknown, shown
from torchx_kfp.contract.carried.storage import FILES
from torchx_kfp.contract.protocol import REGISTERED, WORKSPACES
from torchx_kfp.errors import CorruptResultError, NotRecordedError, RefusedError, TrackerError, explain
from torchx_kfp.tracking.entries import add_entry, encode_json
from torchx_kfp.tracking.store import Store, key_text, new_entry_name

_logger = logging.getLogger(__name__)

#: The largest list of files that is read, in bytes: enough for a million files with long names.
_LONGEST_LIST = 256 << 20
#: The places of stored files that an entry may name.
_KEY = re.compile(r"\.torchx_kfp/files/.+/[^/]+/(?!\.\.?$)[^/\0]+")
_DIGEST = re.compile(r"[0-9a-f]{64}")


class _Digest(NamedTuple):
    """A file's size in bytes, and its SHA-256 in hexadecimal digits."""

    size: int
    sha256: str

    @classmethod
    def parse(cls, size: object, sha256: object) -> _Digest:
        """Parse a size and a digest that anybody may have written. Raises ValueError if they are malformed."""
        # A file of negative size would be neither copied nor checked.
        if type(size) is not int or size < 0 or not (isinstance(sha256, str) and _DIGEST.fullmatch(sha256)):
            raise ValueError(f"{size!r} and {sha256!r} are not a size and a digest")
        return cls(size, sha256)


#: The digests of files by name; a single file has an empty name.
_Digests = Mapping[str, _Digest]
#: The size, modification time and inode of a local file, by which changes are noticed.
_State = tuple[int, int, int]


@dataclass(frozen=True)
class StoredFiles:
    """A stored file or folder.

    Attributes:
        store: the store of the tracker base.
        key: its place below the tracker base.
        size: its size in bytes.
        sha256: the SHA-256 of the file, or of the list of the folder's files, in hexadecimal digits.
        count: the number of files in a folder; None for a file.
    """

    store: Store = field(compare=False, repr=False)
    key: str
    size: int
    sha256: str
    count: int | None = None

    @classmethod
    def parse(cls, store: Store, content: Mapping[str, Any]) -> StoredFiles:
        """Parse an entry.

        Raises:
            KeyError, TypeError, ValueError: the entry is malformed.
        """
        key, count = str(content["key"]), content.get("files")
        if not _KEY.fullmatch(key) or ".." in key.split("/"):
            raise ValueError(f"{key!r} is not the place of stored files")
        return cls(
            store, key, *_Digest.parse(content["size"], content["sha256"]), None if count is None else int(count)
        )

    def encode(self) -> dict[str, object]:
        """Return the entry that ``parse`` reads."""
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

    def are_there(self) -> bool:
        """Check the number and the total size of the files in the store, without reading them."""
        sizes = [file.size for file in self.store.list_files(self.key.rpartition("/")[0])]
        is_listed = self.count is None or bool(self.store.list_files(self._list_key))
        return is_listed and len(sizes) == (1 if self.count is None else self.count) and sum(sizes) == self.size

    @property
    def _list_key(self) -> str:
        return f"{self.key.rpartition('/')[0]}.json"

    def contents(self) -> tuple[_Digests, list[str]]:
        """Return the digests of the files by their names in the folder, and the empty folders."""
        if self.count is None:
            return {"": _Digest(self.size, self.sha256)}, []
        content = self.store.read(self._list_key, _LONGEST_LIST)
        if content is None:
            raise self._gone()
        if (found := hashlib.sha256(content).hexdigest()) != self.sha256:
            raise self._changed(self._list_key, f"the SHA-256 {found}", self.sha256)
        return _parse_list(content)

    def is_at(self, path: str) -> bool:
        """Return whether a local file or folder has the same content."""
        try:
            return _read_local(path).sha256 == self.sha256
        except (OSError, RefusedError):
            return False

    def fetch(self, files: _Digests, place: Callable[[str], str]) -> None:
        """Copy files to local places, and check their digests.

        Raises:
            NotRecordedError: a file was removed.
            CorruptResultError: a file was changed.
        """
        keys = {name: f"{self.key}/{name}" if name else self.key for name in files}
        # Sizes are checked first: the record may be wrong, and a file huge.
        place_of_all = next(iter(keys.values())) if len(files) == 1 else self.key
        there = {file.key: file.size for file in self.store.list_files(place_of_all)}
        for name, wanted in files.items():
            if (size := there.get(keys[name])) is None:
                raise self._gone()
            if size != wanted.size:
                raise self._changed(keys[name], f"{size:,} bytes", f"{wanted.size:,}")
        try:
            self.store.get_files({keys[name]: (place(name), files[name].size) for name in files})
        except FileNotFoundError:
            raise self._gone() from None
        for name, wanted in files.items():
            if (found := _hash(place(name)).sha256) != wanted.sha256:
                raise self._changed(keys[name], f"the SHA-256 {found}", wanted.sha256)

    def _gone(self) -> NotRecordedError:
        return NotRecordedError(
            f"The files of the artifact at {self.url} no longer exist. Run the stage that made them again."
        )

    def _changed(self, key: str, found: str, wanted: str) -> CorruptResultError:
        return CorruptResultError(
            f"{self.store.location(key)} has {found} instead of {wanted}: it was changed. Run the stage that "
            "made it again."
        )


@dataclass(frozen=True)
class Artifact:
    """A file or folder that an execution created.

    Attributes:
        name: its registered name.
        path: a local path or an fsspec URL. Empty if the artifact consists only of metadata.
        metadata: JSON values by name.
        stored: the copy below the tracker base; None if the artifact was only registered.
    """

    name: str
    path: str
    metadata: Mapping[str, object] = field(default_factory=dict)
    stored: StoredFiles | None = None

    @property
    def url(self) -> str:
        """The path or URL of the stored copy, if there is one; otherwise ``path``."""
        return self.stored.url if self.stored is not None else self.path

    def files(self) -> dict[str, int]:
        """Return the sizes of the stored files in bytes, by their names in the folder; a single file has an empty name.

        Raises:
            NotRecordedError: it is not stored, or was removed.
            CorruptResultError: the list of its files was changed.
        """
        return {name: file.size for name, file in self._stored().contents()[0].items()}

    def open(self, name: str = "") -> BinaryIO:
        """Open the stored file, or a file of the stored folder, for reading.

        The file is copied to this machine and its digest is checked before the first byte is returned. To read a file
        more than once, use ``download``.

        Args:
            name: the name of a file in the folder, such as ``weights/0.bin``.

        Raises:
            NotRecordedError: it is not stored, or was removed, or the folder does not have this file.
            CorruptResultError: it was changed.
        """
        import tempfile  # slow to load

        stored = self._stored()
        files, _ = stored.contents()
        if name not in files:
            if not name:
                raise NotRecordedError(
                    f"{self.url} is a folder of {len(files):,} files. Name one of them, such as "
                    f"open({next(iter(files), 'file')!r}), or copy all of them with download(folder)."
                )
            raise NotRecordedError(describe_unknown(f"The artifact at {self.url}", "file", name, files))
        with tempfile.TemporaryDirectory(prefix="torchx-kfp-artifact-") as folder:
            place = os.path.join(folder, "content")
            stored.fetch({name: files[name]}, lambda _: place)
            return open(place, "rb")  # the open file outlives its name

    def download(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> str:
        """Copy the stored file or folder into a local folder, check its digests, and return its path there.

        The copy keeps its name, and appears complete or not at all. If the folder already has it with the same content,
        nothing is copied; several processes may call this at once.

        Args:
            folder: the folder to copy it into, which is created.
            overwrite: whether to replace another file or folder of that name.

        Raises:
            NotRecordedError: it is not stored, or was removed.
            CorruptResultError: it was changed.
            FileExistsError: another file or folder has its name.
            OSError: the folder cannot be written.
        """
        import tempfile  # slow to load

        stored = self._stored()
        os.makedirs(folder, exist_ok=True)
        target = os.path.join(os.fspath(folder), stored.name)
        with lock_folder(folder):
            if os.path.lexists(target):
                if stored.is_at(target):
                    return target
                if not overwrite:
                    raise FileExistsError(
                        f"{target} exists and differs from the artifact at {self.url}. Name another folder, or "
                        "overwrite it."
                    )
            files, folders = stored.contents()
            with tempfile.TemporaryDirectory(prefix=".", suffix=".part", dir=folder) as temporary:
                copy = os.path.join(temporary, "copy")
                if stored.count is not None:
                    for name in ("", *folders, *map(os.path.dirname, files)):
                        os.makedirs(os.path.join(copy, name), exist_ok=True)
                stored.fetch(files, lambda name: os.path.join(copy, name) if name else copy)
                if os.path.lexists(target) and (stored.count is not None or os.path.isdir(target)):
                    os.replace(target, os.path.join(temporary, "old"))
                os.replace(copy, target)
        return target

    def _stored(self) -> StoredFiles:
        if self.stored is None:
            raise NotRecordedError(
                f"The artifact {self.name!r} is not stored: the execution only registered "
                f"{f'its path {self.path!r}' if self.path else 'metadata'}. The stage that makes it can store it: "
                "current_run().add_artifact(name, path, store=True)."
            )
        return self.stored


def parse_artifact(store: Store, name: str, content: Mapping[str, Any]) -> Artifact:
    """Parse the artifact of an entry. Raises KeyError, TypeError or ValueError if it is malformed."""
    stored = content.get("stored")
    files = None if stored is None else StoredFiles.parse(store, stored)
    return Artifact(name, str(content["path"]), dict(content["metadata"]), files)


def add_artifact(
    store: Store,
    run_id: str,
    name: str,
    path: str | os.PathLike[str],
    metadata: Mapping[str, object] | None,
    *,
    stored: bool = False,
) -> str:
    """Register an artifact of an execution, and return its path or URL. If ``stored``, store its files first.

    If a local path does not exist yet, a warning is logged: the file may be created later, or by another process of the
    stage.

    Raises:
        RefusedError: the name or path is not text, the path is a FIFO, socket or device, JSON cannot represent the
            metadata, or a file cannot be stored or changed during the upload. Nothing was registered.
        TrackerError: the store failed. Uploaded files are removed if possible.
    """
    if not isinstance(name, str) or not name:
        raise RefusedError(f"An artifact's name is text, such as 'model'. Got: {shown(name)}.")
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str):
        raise RefusedError(
            f"The path of the artifact {name!r} is {shown(path)}, of type {type(path).__name__}. Write it to a "
            "file, and give the path of that."
        )
    content: dict[str, object] = {"path": absolute(text), "metadata": dict(metadata or {})}
    encode_json(content, f"metadata of the artifact {name!r}")  # before a long upload
    if stored:
        files = _store_files(store, f"{FILES}/{key_text(run_id)}", name, text)
        content |= {"path": files.url, "stored": files.encode()}
    else:
        _look_at(name, text)
    add_entry(store, run_id, {"artifacts": {name: content}})
    _tell_runner(absolute(text.removeprefix("file://")))
    return str(content["path"])


def _tell_runner(path: str) -> None:
    """Report the registered path to the local runner: concurrent executions must not share one."""
    folder = os.environ.get(WORKSPACES)
    if folder and path and "://" not in path:
        with contextlib.suppress(OSError), open(os.path.join(folder, REGISTERED), "a", encoding="utf-8") as file:
            file.write(f"{json.dumps(path)}\n")


def absolute(path: str) -> str:
    """Make a local path absolute, because readers may run in another folder. URLs stay as they are."""
    return os.path.abspath(os.path.expanduser(path)) if path and "://" not in path else path


def _look_at(name: str, path: str) -> None:
    """Report a wrong local path at once, not after the stage has ended."""
    path = path.removeprefix("file://")
    place = absolute(path)
    if not place or "://" in place:
        return
    try:
        kind = special_kind(os.stat(place).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        _logger.warning(
            "The artifact %r is registered at %s, where nothing exists yet. Write it before the stage ends.",
            name,
            place,
        )
    except (OSError, ValueError):  # no permission, or not a path on this system
        return
    else:
        if kind:
            raise RefusedError(
                f"The artifact {name!r} is at {place}, which is a {kind}. Register a file, a folder or a URL."
            )


def _store_files(store: Store, folder: str, name: str, path: str) -> StoredFiles:
    """Store the file or folder at a local path or ``file://`` URL: see ``add_artifact``."""
    top = absolute(path.removeprefix("file://"))
    if not top or "://" in top:
        raise RefusedError(
            f"The artifact {name!r} cannot be stored: {shown(path)} is not a local path. Leave out store=True "
            "to register a URL."
        )
    try:
        content = _read_local(top)
    except OSError as error:
        raise RefusedError(f"The artifact {name!r} cannot be stored: {explain(error)}.") from None
    place = f"{folder}/{new_entry_name()}"
    key = f"{place}/{os.path.basename(top) or 'files'}"
    files = {
        f"{key}/{below}" if below else key: (os.path.join(top, below) if below else top, file.size)
        for below, file in content.files.items()
    }
    try:
        try:
            store.put_files(files)
        finally:
            _verify_unchanged(top, content.states)  # first: a missing file is not an error of the store
        if content.listing is not None:
            store.write(f"{place}.json", content.listing)
        return StoredFiles(store, key, content.size, content.sha256, None if content.listing is None else len(files))
    except BaseException:
        with contextlib.suppress(TrackerError):
            list(store.each(store.remove, [file.key for file in store.list_files(place)]))
        raise


class _Content(NamedTuple):
    """The content of a file, or of a folder with the list of its files."""

    states: Mapping[str, _State]
    files: _Digests
    listing: bytes | None
    size: int
    sha256: str


def _read_local(top: str) -> _Content:
    """Read a local file or folder. Errors are those of ``_list_local``."""
    states = _list_local(top)
    files = {name: _hash(os.path.join(top, name) if name else top) for name in states if not name.endswith("/")}
    if "" in files:
        return _Content(states, files, None, *files[""])
    content = {"files": files, "folders": sorted(name for name in states if name.endswith("/"))}
    listing = json.dumps(content, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()
    size = sum(file.size for file in files.values())
    return _Content(states, files, listing, size, hashlib.sha256(listing).hexdigest())


def _parse_list(content: bytes) -> tuple[_Digests, list[str]]:
    """Parse a list whose digest was checked. Anybody who can write to the tracker base may have written it.

    Raises:
        CorruptResultError: a name would lead out of the folder, or the list is malformed.
    """
    try:
        content_list = json.loads(content)
        files = {name: _Digest.parse(*file) for name, file in content_list["files"].items()}
        for name in (*files, *(folder.removesuffix("/") for folder in content_list["folders"])):
            if b"\0" in name.encode() or not {"", ".", ".."}.isdisjoint(name.split("/")):
                raise ValueError(name)
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise CorruptResultError(f"A list of stored files is malformed: {error!r}. Another program wrote it.") from None
    return files, content_list["folders"]


def _list_local(top: str) -> dict[str, _State]:
    """Return the files and empty folders of a folder by relative names; a single file has an empty name.

    Raises:
        RefusedError: the folder contains something that cannot be stored.
        OSError: a file cannot be read, or a link is broken.
    """
    states: dict[str, _State] = {}
    waiting: list[tuple[str, tuple[tuple[int, int], ...]]] = [("", ())]
    while waiting:
        name, above = waiting.pop()
        path = os.path.join(top, name) if name else top
        state = os.stat(path)
        if kind := special_kind(state.st_mode):
            raise RefusedError(f"{shown(path)} cannot be stored: it is a {kind}. Store files and folders only.")
        if not stat.S_ISDIR(state.st_mode):
            states[name] = state.st_size, state.st_mtime_ns, state.st_ino
            continue
        own = state.st_dev, state.st_ino
        if own in above:
            raise RefusedError(f"{shown(path)} cannot be stored: it is a link to a folder that it is in.")
        inner = sorted(os.listdir(path))
        if name and not inner:
            states[f"{name}/"] = 0, 0, 0
        for each in inner:
            try:
                each.encode()
            except UnicodeEncodeError:
                raise RefusedError(
                    f"{os.fsencode(os.path.join(path, each))!r} cannot be stored: the name is not UTF-8. Rename it."
                ) from None
            waiting.append((f"{name}/{each}" if name else each, (*above, own)))
    return dict(sorted(states.items()))


def _hash(path: str) -> _Digest:
    size, digest = 0, hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(1 << 20):
            size += len(chunk)
            digest.update(chunk)
    return _Digest(size, digest.hexdigest())


def _verify_unchanged(top: str, before: Mapping[str, _State]) -> None:
    """Check that no file changed during the upload.

    Raises:
        RefusedError: a file was changed, removed or added.
    """
    try:
        after = _list_local(top)
        names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
        different = [os.path.join(top, name) if name else top for name in names]
    except FileNotFoundError as error:
        different = [error.filename]
    if different:
        raise RefusedError(
            f"{shown(different[0])} changed during the upload, so nothing was registered. Store it when it is "
            "complete. If several stages write it at once, let each write its own file."
        )

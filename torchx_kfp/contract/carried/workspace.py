"""Unpack a workspace in a stage, and replace this process with the application.

The archive of a workspace begins with this program. A stage's command fetches the archive, checks its digest, which is
part of the pipeline's arguments, and runs the program (``scripts.workspace_words``). So write access to the storage is
not enough to change the code of a stage unnoticed. The program only accepts what ``workspaces`` packs: files, and links
that stay inside. Archives are not compressed, so unpacked files are not larger.
"""

from __future__ import annotations

import io
import os
import sys
import tarfile
import tempfile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

#: The folder of the package's own files.
_OWN = ".torchx_kfp/"


def members(archive: bytes, /) -> Iterator[tarfile.TarInfo]:
    """Yield the files and links of the workspace, without the package's own files.

    Raises:
        tarfile.TarError: the archive is malformed.
    """
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as opened:
            for member in opened:
                if not member.name.startswith(_OWN):
                    yield member
    except (OverflowError, ValueError) as error:  # a size in a header
        raise tarfile.ReadError(str(error)) from None


def content(archive: bytes, member: tarfile.TarInfo, /) -> memoryview:
    """Return the content of a file."""
    return memoryview(archive)[member.offset_data : member.offset_data + member.size]


def unpack(archive: bytes, folder: str, /) -> None:
    """Unpack the archive into an empty folder, whose path does not contain links.

    Raises:
        ValueError: a member of the archive cannot be part of a workspace.
        OSError: a file cannot be written.
    """
    links = []
    made = set()
    for member in members(archive):
        path = os.path.normpath(f"/{member.name}")
        if member.name.startswith("/") or path != f"/{member.name}":
            raise ValueError(f"it has the name {member.name!r}")
        above = os.path.dirname(path)
        if above not in made:
            os.makedirs(folder + above, exist_ok=True)
            made.add(above)
        if member.issym():
            links.append((member.linkname, folder + path))
        elif member.type == tarfile.REGTYPE and not member.issparse():
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            with open(os.open(folder + path, flags, member.mode & 0o777), "wb", 0) as file:
                rest = content(archive, member)
                while rest:
                    rest = rest[file.write(rest) :]
        else:
            raise ValueError(f"it has {member.name!r}, which is neither a file nor a link")
    # Links are made last, so that no file is written through a link.
    for target, path in links:
        os.symlink(target, path)
    for target, path in links:
        if target.startswith("/") or not f"{os.path.realpath(path)}/".startswith(f"{folder}/"):
            raise ValueError(f"it has a link to {target!r}")


def start(archive: bytes, words: list[str], /) -> None:
    """Unpack the workspace into a new folder, and replace this process by the application, which starts there."""
    folder = os.path.realpath(tempfile.mkdtemp(prefix="workspace-", dir=os.environ.get("TORCHX_KFP_WORKSPACES")))
    unpack(archive, folder)
    os.chdir(folder)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
    try:
        os.execvp(words[0], words)
    except OSError as error:
        print(f"torchx-kfp: {words[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(126 if isinstance(error, PermissionError) else 127)


if __name__ == "__main__":
    start(globals()["f"], sys.argv[2:])

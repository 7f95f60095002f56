"""Unpack a workspace in a stage, and become the application in it.

In the command of a stage, this program stands before the application::

    python3 -c PROGRAM URL WORD...

URL names the archive by its SHA-256: ``<tracker base>/.torchx_kfp/workspaces/<digest>.tar``. The digest is part of the
pipeline's arguments, so nobody who can only write to the storage can change the code of a stage unnoticed. Archives are
made by ``common.archive``; this program takes no more than such an archive has: files and links that stay inside.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tarfile
import tempfile

from torchx_kfp.contract.carried.shared import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Refused(Exception):
    """The archive is not what the URL names, or not a workspace."""


def copy(source: Any, out: Any, digest: Any = None, /) -> None:
    """Copy everything that can be read, and add it to the digest."""
    for chunk in iter(lambda: source.read(1 << 20), b""):
        out.write(chunk)
        if digest:
            digest.update(chunk)


def fetch(url: str, file: Any, /) -> None:
    """Copy the archive into the file, and check its digest."""
    import fsspec

    digest = hashlib.sha256()
    with fsspec.open(url) as source:
        copy(source, file, digest)
    if digest.hexdigest() not in url.rpartition("/")[2]:
        raise Refused(f"has the digest {digest.hexdigest()}: it was changed")


def unpack(file: Any, folder: str, /) -> None:
    """Unpack the archive into an empty folder."""
    file.seek(0)
    with tarfile.open(fileobj=file) as archive:
        links = []
        for member in archive:
            path = os.path.normpath(f"/{member.name}")
            if member.name.startswith("/") or path != f"/{member.name}":
                raise Refused(f"has the name {member.name!r}")
            os.makedirs(folder + os.path.dirname(path), exist_ok=True)
            if member.issym():
                links.append((member.linkname, folder + path))
            elif member.type == tarfile.REGTYPE:
                with open(
                    os.open(folder + path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, member.mode & 0o777), "wb"
                ) as out:
                    copy(archive.extractfile(member), out)
            else:
                raise Refused(f"has {member.name!r}, which is neither a file nor a link")
        # No file can be written through a link: there are none yet.
        for target, path in links:
            os.symlink(target, path)
        for target, path in links:
            if target.startswith("/") or not f"{os.path.realpath(path)}/".startswith(f"{folder}/"):
                raise Refused(f"has a link to {target!r}")


def main(url: str, /, *words: str) -> None:
    """Unpack the workspace, and replace this process by the application."""
    try:
        folder = os.path.realpath(tempfile.mkdtemp(prefix="workspace-", dir=os.environ.get("TORCHX_KFP_WORKSPACES")))
        with tempfile.TemporaryFile() as file:
            fetch(url, file)
            unpack(file, folder)
    except ImportError as error:
        say("a workspace needs fsspec and the driver of its storage in the image:", error)
    except Exception as error:
        say(f"the workspace {url}", error if isinstance(error, Refused) else f"cannot be used: {error!r}")
    else:
        os.chdir(folder)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
        try:
            os.execvp(words[0], words)
        except OSError as error:
            say(f"{words[0]}: {error.strerror}")
            sys.exit(126 if isinstance(error, PermissionError) else 127)
    sys.exit(125)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Images for tests, made of what this machine has: no registry is needed.

``BUSYBOX_IMAGE`` holds a static busybox under the names of its commands, and nothing else. ``HOST_IMAGE``
holds next to nothing: in a container with ``host_mounts()`` it is this machine's userland with the
interpreter that runs the tests as ``python``, and with this repository at its own path. The same mounts do
no harm in other images: only the host's image looks where they put the userland.
"""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
BUSYBOX = Path("/bin/busybox")
#: Where the host's userland is mounted. Not over /usr and /bin: every image in a run gets all mounts.
HOST_ROOT = "/host"


class UnusableHostError(Exception):
    """This machine lacks something that the images are made of."""


def busybox_root() -> bytes:
    """The root file system of ``BUSYBOX_IMAGE``, as a tar file."""
    if not BUSYBOX.exists():
        raise UnusableHostError(f"{BUSYBOX} is missing: install busybox-static")
    if b"/ld-" in BUSYBOX.read_bytes()[:4096]:
        raise UnusableHostError(f"{BUSYBOX} is not a static binary: install busybox-static")
    commands = subprocess.run([BUSYBOX, "--list"], check=True, capture_output=True, text=True).stdout.split()
    root = _Root()
    root.file("bin/busybox", BUSYBOX.read_bytes(), mode=0o755)
    for command in commands:
        if command != "busybox":
            root.link(f"bin/{command}", "busybox")
    return root.tar()


def host_root() -> bytes:
    """The root file system of ``HOST_IMAGE``, as a tar file."""
    root = _Root()
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr"):
        path = Path("/", name)
        if path.is_symlink():
            root.link(name, os.readlink(path))
        elif path.exists():
            root.link(name, f"{HOST_ROOT}/{name}")
    # Files of /etc are copied: the engine has to write some of its own there.
    for name in ("passwd", "group", "nsswitch.conf", "ld.so.cache"):
        path = Path("/etc", name)
        if path.exists():
            root.file(f"etc/{name}", path.read_bytes())
    return root.tar()


def host_changes() -> list[str]:
    """What ``HOST_IMAGE`` sets, as the Dockerfile lines that ``docker import`` takes."""
    path = ":".join([str(Path(sys.prefix, "bin")), "/usr/local/bin", "/usr/bin", "/bin"])
    return [f'ENV PATH="{path}"', "ENV PYTHONDONTWRITEBYTECODE=1"]


def host_mounts() -> dict[str, str]:
    """What containers of ``HOST_IMAGE`` need to see, read-only: path on this machine -> path in the container."""
    mounts = {
        f"/{name}": f"{HOST_ROOT}/{name}"
        for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr")
        if Path("/", name).is_dir() and not Path("/", name).is_symlink()
    }
    wanted = [REPOSITORY, Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).resolve().parents[1]]
    if Path("/etc/alternatives").is_dir():
        wanted.append(Path("/etc/alternatives"))
    for path in sorted(set(wanted)):
        # In /usr already, or inside of another one. Sorted, so the outer one comes first.
        if not any(path.is_relative_to(outer) for outer in ("/usr", *mounts)):
            mounts[str(path)] = str(path)
    return mounts


class _Root:
    """A tar file of a root file system, in memory."""

    def __init__(self) -> None:
        self._entries: list[tuple[tarfile.TarInfo, bytes]] = []
        # The engine mounts on these.
        for name, mode in {"dev": 0o755, "etc": 0o755, "proc": 0o755, "sys": 0o755, "tmp": 0o1777}.items():
            self._add(name, tarfile.DIRTYPE, mode)

    def file(self, name: str, content: bytes, mode: int = 0o644) -> None:
        self._add(name, tarfile.REGTYPE, mode, content)

    def link(self, name: str, target: str) -> None:
        self._add(name, tarfile.SYMTYPE, 0o777, target=target)

    def tar(self) -> bytes:
        tar = io.BytesIO()
        with tarfile.open(fileobj=tar, mode="w") as archive:
            for entry, content in self._entries:
                archive.addfile(entry, io.BytesIO(content))
        return tar.getvalue()

    def _add(self, name: str, kind: bytes, mode: int, content: bytes = b"", target: str = "") -> None:
        entry = tarfile.TarInfo(name)
        entry.type, entry.mode, entry.size, entry.linkname = kind, mode, len(content), target
        self._entries.append((entry, content))


def image_name(name: str, content: bytes, changes: Sequence[str] = ()) -> str:
    """The name of an image that has this content: one of another clone may be in the same engine."""
    digest = hashlib.sha256(b"\0".join([content, *map(str.encode, changes)])).hexdigest()
    return f"torchx-kfp-test/{name}:{digest[:16]}"


_BUSYBOX = BUSYBOX.read_bytes() if BUSYBOX.exists() else b""
BUSYBOX_IMAGE = image_name("busybox", _BUSYBOX)
HOST_IMAGE = image_name("host", host_root(), host_changes())
#: An image with an entrypoint, a command and a variable of its own, whose user is not root.
OWN_CHANGES = ['ENTRYPOINT ["echo", "own"]', 'CMD ["its-command"]', "ENV OWN=its-own", "USER 1234:1234"]
OWN_IMAGE = image_name("own", _BUSYBOX, OWN_CHANGES)

"""Images for tests, made from files of this machine, so that a registry is not needed.

``BUSYBOX_IMAGE`` contains only a static busybox, with the names of its commands. ``HOST_IMAGE`` contains next to
nothing: in a container with ``host_mounts()``, it is this machine's userland, with the interpreter that runs the tests
as ``python`` and with this repository at its own path. The same mounts do not affect other images, which do not look
where they put the userland.
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
#: Where the host's userland is mounted. It is not mounted over /usr and /bin: every image in a run gets all mounts.
HOST_ROOT = "/host"


class UnusableHostError(Exception):
    """This machine lacks something that the images need."""


def busybox_root() -> bytes:
    """Return the root file system of ``BUSYBOX_IMAGE``, as a tar file."""
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
    """Return the root file system of ``HOST_IMAGE``, as a tar file."""
    root = _Root()
    root.folder("sbin")  # where engines mount their init
    for name in ("bin", "lib", "lib32", "lib64", "libx32", "usr"):
        path = Path("/", name)
        if path.is_symlink():
            root.link(name, os.readlink(path))
        elif path.exists():
            root.link(name, f"{HOST_ROOT}/{name}")
    # Files of /etc are copied, because the engine must write some of its own there.
    for name in ("passwd", "group", "nsswitch.conf", "ld.so.cache"):
        path = Path("/etc", name)
        if path.exists():
            root.file(f"etc/{name}", path.read_bytes())
    return root.tar()


def host_changes() -> list[str]:
    """Return the settings of ``HOST_IMAGE``, as Dockerfile lines for ``docker import``."""
    path = ":".join([str(Path(sys.prefix, "bin")), "/usr/local/bin", "/usr/bin", "/bin"])
    return [f'ENV PATH="{path}"', "ENV PYTHONDONTWRITEBYTECODE=1"]


def host_mounts() -> dict[str, str]:
    """Return the read-only mounts that containers of ``HOST_IMAGE`` need: paths in the container, by paths here."""
    mounts = {
        f"/{name}": f"{HOST_ROOT}/{name}"
        for name in ("bin", "lib", "lib32", "lib64", "libx32", "usr")
        if Path("/", name).is_dir() and not Path("/", name).is_symlink()
    }
    wanted = [REPOSITORY, Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).resolve().parents[1]]
    if Path("/etc/alternatives").is_dir():
        wanted.append(Path("/etc/alternatives"))
    for path in sorted(set(wanted)):
        # Leave out paths in /usr or inside another one. They are sorted, so the outer one comes first.
        if not any(path.is_relative_to(outer) for outer in ("/usr", *mounts)):
            mounts[str(path)] = str(path)
    return mounts


class _Root:
    """A tar file of a root file system, in memory."""

    def __init__(self) -> None:
        self._entries: list[tuple[tarfile.TarInfo, bytes]] = []
        # The engine mounts something on these folders.
        for name, mode in {"dev": 0o755, "etc": 0o755, "proc": 0o755, "sys": 0o755, "tmp": 0o1777}.items():
            self._add(name, tarfile.DIRTYPE, mode)

    def folder(self, name: str) -> None:
        self._add(name, tarfile.DIRTYPE, 0o755)

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
    """Return the name of an image with this content: the engine may also have an image of another clone."""
    digest = hashlib.sha256(b"\0".join([content, *map(str.encode, changes)])).hexdigest()
    return f"torchx-kfp-test/{name}:{digest[:16]}"


_BUSYBOX = BUSYBOX.read_bytes() if BUSYBOX.exists() else b""
BUSYBOX_IMAGE = image_name("busybox", _BUSYBOX)
HOST_IMAGE = image_name("host", host_root(), host_changes())
#: Settings of an image with its own entrypoint, command and variable, whose user is not root.
OWN_CHANGES = ['ENTRYPOINT ["echo", "own"]', 'CMD ["its-command"]', "ENV OWN=its-own", "USER 1234:1234"]
OWN_IMAGE = image_name("own", _BUSYBOX, OWN_CHANGES)

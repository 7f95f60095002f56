"""What ``pip install`` was asked for, compared with what is installed already."""

from __future__ import annotations

import importlib.metadata
import os
import re
from collections.abc import Iterator, Sequence
from urllib.parse import unquote, urlsplit

from packaging.requirements import InvalidRequirement, Requirement

#: Options that only say where packages come from; each has a value.
SOURCE_OPTIONS = ("--index-url", "-i", "--extra-index-url", "--trusted-host", "--find-links", "-f")


def are_satisfied(words: Sequence[str]) -> bool:
    """Whether ``pip install`` with these words would find everything installed in the running interpreter."""
    rest = iter(words)
    for word in rest:
        if word in SOURCE_OPTIONS:
            next(rest, None)
        elif not _is_satisfied(word):
            return False
    return True


def _is_satisfied(word: str) -> bool:
    try:
        requirement = Requirement(word)
    except InvalidRequirement:  # another option, or a path
        return False
    if requirement.marker is not None and not requirement.marker.evaluate():
        return True
    return requirement.url is None and _is_installed(requirement)


def _is_installed(requirement: Requirement) -> bool:
    try:
        distribution = importlib.metadata.distribution(requirement.name)
    except importlib.metadata.PackageNotFoundError:
        return False
    # Metadata that is broken has no version.
    version: str | None = distribution.metadata["Version"]
    if not version or not requirement.specifier.contains(version, prereleases=True):
        return False
    return all(_is_installed(extra) for extra in _of_extras(distribution, requirement.extras))


def _of_extras(distribution: importlib.metadata.Distribution, extras: set[str]) -> Iterator[Requirement]:
    """What these extras of a distribution need beyond the distribution itself."""
    for text in distribution.requires or () if extras else ():
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is None or marker.evaluate({"extra": ""}):
            continue
        if any(marker.evaluate({"extra": extra}) for extra in extras):
            yield requirement


def local_state(words: Sequence[str]) -> list[str]:
    """What tells whether the files and folders that are named there have changed."""
    paths = {path for word in words if (path := _local_path(word)) and os.path.exists(path)}
    return [f"{path} {os.path.getsize(path)} {_newest(path)}" for path in sorted(paths)]


def _local_path(word: str) -> str:
    place = re.sub(r"^[\w.\[\],-]+\s*@\s*", "", word)
    if place.startswith("file:"):
        return unquote(urlsplit(place).path)
    # A bare name is looked up in an index, also where there is a file of that name.
    return re.sub(r"\[[\w,. -]*\]$", "", place) if os.sep in place else ""


def _newest(path: str) -> int:
    """The time of the last change in a file or folder, in ns."""
    times = [os.stat(path).st_mtime_ns]
    for folder, folders, files in os.walk(path):
        folders[:] = [name for name in folders if not name.startswith(".")]
        times += [os.lstat(os.path.join(folder, name)).st_mtime_ns for name in (*folders, *files)]
    return max(times)

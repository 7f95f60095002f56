"""Checks of this machine: Python, packages and whether they fit together, a container engine, and the settings."""

from __future__ import annotations

import contextlib
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata

from torchx_kfp.common.extras import install_line
from torchx_kfp.common.text import joined, listed
from torchx_kfp.entrypoints.doctor.verdicts import Verdict, missing, ok, said, warning, within
from torchx_kfp.errors import ContainerEngineError
from torchx_kfp.execution.host.settings import SETTINGS, Settings, config_file, without_password

#: The versions of Python with which torchx-kfp is tested.
_OLDEST, _NEWEST = (3, 10), (3, 13)
#: The distributions that have to fit together, each under the names that it may have.
_PACKAGES = (
    ("torchx-kfp",),
    ("kfp",),
    ("kfp-kubernetes",),
    ("kfp-server-api",),
    ("torchx", "torchx-nightly"),
    ("urllib3",),
    ("fsspec",),
)
#: The drivers of storage, which go with some versions of fsspec only; they are optional.
_DRIVERS = (("s3fs",), ("gcsfs",), ("adlfs",))
#: Seconds that a container engine may take.
_ENGINE_SECONDS = 15.0
#: A distribution's version and requirements; raises PackageNotFoundError.
Installed = Callable[[str], tuple[str, list[str]]]


def installed(name: str) -> tuple[str, list[str]]:
    """Return the version and the requirements of a distribution.

    Raises:
        PackageNotFoundError: it is not installed.
    """
    return metadata.version(name), metadata.requires(name) or []


def check_python(version: tuple[int, ...] = sys.version_info[:3]) -> Iterator[Verdict]:
    """Yield a verdict about the version of Python."""
    text = ".".join(map(str, version))
    found = f"{text} ({platform.system()}, {sys.executable})."
    if _OLDEST <= version[:2] <= _NEWEST:
        yield ok("Python", found)
    else:
        oldest, newest = (".".join(map(str, each)) for each in (_OLDEST, _NEWEST))
        yield warning("Python", found, f"torchx-kfp is tested with {oldest} to {newest}.")


def check_packages(of: Installed = installed) -> Iterator[Verdict]:
    """Yield verdicts about the packages on which torchx-kfp rests: their versions, and whether they fit together.

    Args:
        of: returns the version and the requirements of a distribution; raises PackageNotFoundError.
    """
    versions: dict[str, str] = {}
    needs: dict[str, list[str]] = {}
    lacking: list[str] = []
    for names in (*_PACKAGES, *_DRIVERS):
        for name in names:
            with contextlib.suppress(metadata.PackageNotFoundError):
                versions[name], needs[name] = of(name)
                break
        else:
            if names not in _DRIVERS:
                lacking.append(names[0])
    found = ", ".join(f"{name} {version}" for name, version in versions.items())
    if lacking:
        yield missing("packages", f"There is no {joined(lacking)}.", f"Run: {install_line('pipelines')}")
    elif not (wrong := list(_conflicts(versions, needs, of))):
        yield ok("packages", f"{found}: they fit together.")
    else:
        way_out = "Install versions that pip accepts together, in an environment without others."
        if versions.get("torchx") == "0.7.0" and any(" needs urllib3" in text for text in wrong):
            way_out = (
                'TorchX 0.7.0 works with kfp up to 2.16.1: pip install "kfp<2.17" "kfp-kubernetes<2.17" "urllib3<2".'
            )
        yield missing("packages", f"{listed(wrong, 5)} ({found}).", way_out)


def _conflicts(versions: Mapping[str, str], needs: Mapping[str, list[str]], of: Installed) -> Iterator[str]:
    """Yield the requirements of distributions that the installed versions do not meet, as clauses."""
    from packaging.requirements import InvalidRequirement, Requirement

    for name, requirements in needs.items():
        extra = "pipelines" if name == "torchx-kfp" else ""
        for text in requirements:
            try:
                requirement = Requirement(text)
            except InvalidRequirement:  # such as one of an old package
                continue
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
                continue
            wanted = "torchx-nightly" if requirement.name == "torchx" and "torchx-nightly" in versions else None
            wanted = wanted or requirement.name
            try:
                version = versions.get(wanted) or of(wanted)[0]
            except metadata.PackageNotFoundError:
                yield f"{name} {versions[name]} needs {requirement.name}, which is not installed"
                continue
            if wanted != "torchx-nightly" and not requirement.specifier.contains(version, prereleases=True):
                yield f"{name} {versions[name]} needs {requirement.name} {requirement.specifier}, but {version} is here"


def check_engine() -> Iterator[Verdict]:
    """Yield a verdict about the container engine of this machine, which few commands need."""
    from torchx_kfp.execution.local.executors.engine import find_engine

    try:
        engine = within(_ENGINE_SECONDS, find_engine)
        yield ok("container engine", f"{engine.version} of {engine.program} answers.")
    except Exception as error:
        found = "Neither Docker nor Podman answers." if isinstance(error, ContainerEngineError) else said(error)
        way_out = "Start Docker, set DOCKER_HOST, or install Podman: torchx-kfp run --docker needs it, nothing else."
        yield warning("container engine", found, way_out)


def check_settings(settings: Settings) -> Iterator[Verdict]:
    """Yield verdicts about the settings of the host: where each comes from, without the values of secrets."""
    for name, source in settings.sources.items():
        value = getattr(settings, name)
        shown = "given, and not shown" if SETTINGS[name].secret else without_password(str(value))
        yield ok(f"setting {name}", f"{shown}, from {source}.")
    for sentence in settings.warnings:
        yield warning("settings", sentence)
    if not settings.sources:
        yield ok("settings", f"None is given, neither as a flag nor in the environment nor in {config_file()}.")

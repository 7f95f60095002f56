"""Where the pipelines run: a KFP host, its storage, and its images."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

#: The beginning of the variables' names; ``make test-kfp`` sets them.
PREFIX = "TORCHX_KFP_SUITE_"
#: What all processes of one run of the suite have in common: those that are started later inherit it.
RUN = os.environ.setdefault("KFP_SUITE_RUN", uuid.uuid4().hex[:8])


@dataclass(frozen=True)
class Place:
    """A KFP host, and what its pods need.

    Attributes:
        host: the URL of the host.
        base: the tracker base, which this machine and the pods reach.
        image: an image with python3, fsspec, the storage's driver, and kfp, and with what examples import.
        shell_image: an image with nothing but a shell.
        claim: a volume claim that pods mount at the base, if that is a folder.
        engines: the engines of distributed stages that the cluster has.
        is_real: False for the host of the tests.
    """

    host: str
    base: str
    image: str = "python:3.11"
    shell_image: str = "busybox"
    claim: str = ""
    engines: tuple[str, ...] = ("job",)
    is_real: bool = False
    keeps: bool = False

    def image_of(self, name: str) -> str:
        """Return the image of the place for one that a pipeline of the suite names."""
        if name.partition(":")[0] == "busybox":
            return self.shell_image
        return self.image if name == "python:3.11" or name.startswith("torchx-kfp-") else name

    def fit(self, spec: dict[str, Any], platform: dict[str, Any]) -> None:
        """Change a compiled pipeline so that it runs here: the images and the volume."""
        settings = _below(platform, "platforms", "kubernetes", "deploymentSpec", "executors")
        for name, executor in spec["deploymentSpec"]["executors"].items():
            if "container" not in executor:
                continue
            container = executor["container"]
            container["image"] = self.image_of(container["image"])
            if self.claim:
                mount = {"constant": self.claim, "mountPath": self.base}
                settings.setdefault(name, {}).setdefault("pvcMount", []).append(mount)
            if "command" in container:
                container["command"] = [self._fit_manifest(word) for word in container["command"]]

    def _fit_manifest(self, word: str) -> str:
        """Return a word of a command; if it has the pods of a distributed stage, with their images here."""
        if not word.startswith('{"stage":'):
            return word
        specification = json.loads(word)
        for container in _containers(specification):
            container["image"] = self.image_of(container["image"])
        return json.dumps(specification, separators=(",", ":"))


def named_place(environ: Mapping[str, str] = os.environ) -> Place | None:
    """Return the place that the variables name, if they name one.

    Raises:
        ValueError: a variable that goes with the host is missing.
    """
    given = {name.removeprefix(PREFIX).lower(): value for name, value in environ.items() if name.startswith(PREFIX)}
    given = {name: value for name, value in given.items() if value}
    if not given:
        return None
    for name in ("host", "tracker_base", "image"):
        if name not in given:
            raise ValueError(f"{PREFIX}{name.upper()} is missing: make test-kfp needs HOST, TRACKER_BASE and IMAGE.")
    return Place(
        host=given["host"],
        base=given["tracker_base"].rstrip("/"),
        image=given["image"],
        shell_image=given.get("shell_image", given["image"]),
        engines=tuple(given.get("engines", "job").replace(",", " ").split()),
        is_real=True,
        keeps=given.get("keep", "") not in ("", "0"),
    )


def _below(content: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return the object at a path, which is made where it is missing."""
    for name in names:
        content = content.setdefault(name, {})
    return content


def _containers(content: Any) -> Iterator[dict[str, Any]]:
    """Yield the containers of the pods in a manifest."""
    if isinstance(content, list):
        for each in content:
            yield from _containers(each)
    elif isinstance(content, dict):
        yield from content.get("containers", ())
        for each in content.values():
            yield from _containers(each)

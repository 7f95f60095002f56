"""Where the pipelines run: a KFP host, its storage, and its images."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchx.specs import AppDef, Role

from torchx_kfp import Stages

#: The beginning of the variables' names; ``make test-kfp`` sets them.
PREFIX = "TORCHX_KFP_SUITE_"


@dataclass(frozen=True)
class Place:
    """A KFP host, and what its pods need.

    Attributes:
        host: the URL of the host.
        base: the tracker base, which this machine and the pods reach.
        image: an image with python3, fsspec, the storage's driver, and kfp.
        shell_image: an image with nothing but a shell.
        claim: a volume claim that pods mount at the base, if that is a folder.
        secret: a Kubernetes secret with credentials for the storage, ``NAME:KEY_OF_THE_ID:KEY_OF_THE_SECRET``.
        endpoint: the URL of the S3 server as pods reach it; that of AWS if it is empty.
        engines: the engines of distributed stages that the cluster has.
        is_real: False for the host of the tests.
    """

    host: str
    base: str
    image: str = "python:3.11"
    shell_image: str = "busybox"
    claim: str = ""
    secret: str = ""
    endpoint: str = ""
    engines: tuple[str, ...] = ("job",)
    is_real: bool = False
    ledger: str = ""
    keeps: bool = False

    def stages(self, **channels: Any) -> Stages:
        """Return the stages of a pipeline: ``tracker_base`` and ``workspace`` are its parameters."""
        return Stages(**channels, secrets=self.secrets)

    @property
    def secrets(self) -> dict[str, dict[str, str]] | None:
        """The option of stages that gives them the credentials."""
        name, _, keys = self.secret.partition(":")
        variables = dict(zip(keys.split(":"), ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), strict=False))
        return {name: variables} if name else None

    def app(self, name: str, *words: str, image: str = "", **role: Any) -> AppDef:
        """Return an application of ``code/stage.py``."""
        env = {"AWS_ENDPOINT_URL": self.endpoint} if self.endpoint else {}
        args = ["-m", "stage", name, *words]
        return AppDef(name, [Role(name, image=image or self.image, entrypoint="python3", args=args, env=env, **role)])


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
        secret=given.get("secret", ""),
        endpoint=given.get("endpoint", ""),
        engines=tuple(given.get("engines", "job").replace(",", " ").split()),
        is_real=True,
        ledger=given.get("ledger", ".cache/kfp-suite"),
        keeps=given.get("keep", "") not in ("", "0"),
    )

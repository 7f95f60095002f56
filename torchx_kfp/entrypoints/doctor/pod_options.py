"""What the pods of the doctor's stages have. This module loads neither kfp nor TorchX, which may be what is broken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class PodOptions:
    """The options of all pods.

    Attributes:
        image: the image; empty for the default, in which the stages install what it lacks.
        env: variables.
        secrets: variables from secrets: {secret: {key: variable}}.
        volume: the name of a volume claim to mount at the tracker base; empty for none.
    """

    image: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    volume: str = ""

"""torchx-kfp: TorchX applications as stages of Kubeflow Pipelines v2.

Importing this package loads neither kfp nor torchx. The authoring functions and the subpackages are imported on first
use; an installation without the extra ``pipelines`` has only ``torchx_kfp.tracking``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchx_kfp import errors as errors
    from torchx_kfp import host as host
    from torchx_kfp import hpo as hpo
    from torchx_kfp import local as local
    from torchx_kfp import tracking as tracking
    from torchx_kfp.authoring import engines as engines
    from torchx_kfp.authoring.stages import (
        Stages,
        artifact_from_uri,
        component_from_app,
        component_from_function,
        component_spec_from_app,
        publish_results,
        task_from_app,
    )
    from torchx_kfp.tracking import current_run

__version__ = "0.2.0"

__all__ = [
    "Stages",
    "__version__",
    "artifact_from_uri",
    "component_from_app",
    "component_from_function",
    "component_spec_from_app",
    "current_run",
    "publish_results",
    "task_from_app",
]

_MODULES = {"engines": "authoring.engines", **{name: name for name in ("errors", "host", "hpo", "local", "tracking")}}


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return import_module(f"{__name__}.{_MODULES[name]}")
    if name == "current_run":
        return import_module(f"{__name__}.tracking").current_run
    if name in __all__:  # an authoring function, which loads kfp and torchx
        from torchx_kfp.common.extras import require

        require("pipelines", f"{__name__}.{name}")
        return getattr(import_module(f"{__name__}.authoring.stages"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES])

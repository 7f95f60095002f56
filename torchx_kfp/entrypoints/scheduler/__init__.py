"""TorchX's scheduler ``kfp``: ``torchx run -s kfp`` runs an AppDef as a pipeline of one stage on a KFP host.

The distribution ``torchx-kfp-scheduler``, in the folder ``packages`` of the repository, registers it.

``runopts``    the options of ``-cfg`` and a ``.torchxconfig``, and the KFP host that they name
``app_run``    AppDef -> the request for a run; a run -> the roles of an app, the states and lines of their replicas
``scheduler``  ``torchx.schedulers.api.Scheduler``
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchx_kfp.entrypoints.scheduler.scheduler import KfpScheduler

__all__ = ["create_scheduler"]


def create_scheduler(session_name: str, **parameters: Any) -> KfpScheduler:
    """Return the scheduler, for TorchX.

    Args:
        session_name: the name of TorchX's session, a part of app handles.
        parameters: ignored; TorchX makes them from variables such as ``TORCHX_HOST``, whose names 0.7.0 mangles.
    """
    from torchx_kfp.entrypoints.scheduler.scheduler import KfpScheduler

    return KfpScheduler(session_name)

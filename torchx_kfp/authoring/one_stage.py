"""A pipeline of one stage, made from an AppDef."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from typing import Any

from torchx import specs

from torchx_kfp.contract.protocol import TRACKER_BASE_PARAMETER, WORKSPACE_PARAMETER

#: The descriptions of parameters, for those who fill them in in KFP's UI.
_ABOUT = {
    TRACKER_BASE_PARAMETER: "Where the stage records its results, such as s3://bucket/results.",
    WORKSPACE_PARAMETER: "The URL of the code's archive, as torchx-kfp stores it.",
}


def single_stage_pipeline(
    app: specs.AppDef,
    *,
    tracked: bool,
    has_workspace: bool = False,
    annotations: Mapping[str, str] | None = None,
    **options: Any,
) -> Any:
    """Return a pipeline function whose one stage runs the app, and is named like it.

    Args:
        app: the app.
        tracked: whether the pipeline has the parameter ``tracker_base``.
        has_workspace: whether it has the parameter ``workspace``, which replaces workspaces of the app's roles, as
            TorchX's ``--workspace`` does.
        annotations: annotations of the stage's pod.
        options: of ``task_from_app``; those that need a tracker base are only allowed for a tracked stage.

    Raises:
        AppDefError: the app cannot become a stage without losing something.
    """
    from kfp import dsl, kubernetes

    from torchx_kfp.authoring.naming import component_name
    from torchx_kfp.authoring.stages import task_from_app

    if has_workspace:
        app = copy.copy(app)
        app.roles = [copy.copy(role) for role in app.roles]
        for role in app.roles:
            role.workspace = None
    wanted = {TRACKER_BASE_PARAMETER: tracked, WORKSPACE_PARAMETER: has_workspace}
    names = [name for name, is_wanted in wanted.items() if is_wanted]

    def one_stage(*channels: Any) -> None:
        task = task_from_app(app, **dict(zip(names, channels, strict=True)), **options)
        for name, text in (annotations or {}).items():
            kubernetes.add_pod_annotation(task, name, text)

    one_stage.__doc__ = f"Run {app.name}.\n\nArgs:\n" + "".join(f"    {name}: {_ABOUT[name]}\n" for name in names)
    # KFP reads the parameters from the signature, and their descriptions from the docstring.
    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=str) for name in names]
    vars(one_stage)["__signature__"] = inspect.Signature(parameters)
    return dsl.pipeline(name=component_name(app.name))(one_stage)

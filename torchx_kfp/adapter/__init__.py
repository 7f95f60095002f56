"""The adapter: an AppDef becomes a plan of a stage (pure data), and the plan a KFP component or task.

``references`` what is known at run time only, beside constant text
``channels``   finds pipeline channels in an AppDef's values
``text``       which constant text engines would change, and the escapes that protect it
``macros``     TorchX's macros
``fields``     every field of AppDef, Role and Resource: mapped, refused or ignored, and why
``names``      names that KFP, Kubernetes and the tracker take
``scope``      where a channel has one value
``reads``      what a stage reads: aliases and run ids
``shell``      channels in shell programs, as variables
``outputs``    results and artifacts that a stage publishes
``carried``    the program that publishes them, as commands carry it
``command``    the command before the application: run id, protocol variables, arguments byte for byte
``secrets``    variables that hold keys of Kubernetes secrets
``trackers``   further trackers of a stage
``inputs``     names, types and arguments of a component's inputs
``plan``       AppDef -> StagePlan
``emit``       StagePlan -> KFP component and task
``authoring``  the public functions
``standins``   what a component function is called with
``probes``     whether it makes nothing but text of its inputs
``functions``  TorchX component functions as KFP components
``options``    the options of stages, and their types
``shared``     ``Stages``: options that stages share
"""

from torchx_kfp.adapter.authoring import (
    artifact_from_uri,
    component_from_app,
    component_from_function,
    component_spec_from_app,
    container_from_app,
    publish_results,
    task_from_app,
)
from torchx_kfp.adapter.shared import Stages

__all__ = [
    "Stages",
    "artifact_from_uri",
    "component_from_app",
    "component_from_function",
    "component_spec_from_app",
    "container_from_app",
    "publish_results",
    "task_from_app",
]

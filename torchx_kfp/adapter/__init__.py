"""Turn an AppDef into a stage plan (pure data), and the plan into a KFP component or task.

``values``     values that are known only at run time: channels, references, shell programs, text that engines change,
               names
``stage``      AppDef and options -> plan: fields, application, inputs, outputs, command
``functions``  calls TorchX component functions to see which AppDef they build from their inputs
``emit``       plan -> KFP component and task
``tasks``      the public functions that are called in a pipeline
``components`` the public functions that make components
``shared``     ``Stages``, the options that stages share
"""

from torchx_kfp.adapter.components import component_from_app, component_from_function, component_spec_from_app
from torchx_kfp.adapter.shared import Stages
from torchx_kfp.adapter.tasks import artifact_from_uri, container_from_app, publish_results, task_from_app

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

"""All that this project uses of Ax, so that only this module has to follow its changes.

Ax builds a Jinja environment, 500 modules and the registries of its storage when it is imported: 5 seconds.
"""

from __future__ import annotations

from ax.api.client import Client
from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig
from ax.api.protocols.metric import IMetric
from ax.api.protocols.runner import IRunner
from ax.core.trial_status import TrialStatus
from ax.exceptions.core import OptimizationComplete
from ax.exceptions.generation_strategy import MaxParallelismReachedException
from ax.storage import metric_registry, runner_registry
from ax.storage.json_store import encoders, registry

__all__ = [
    "ChoiceParameterConfig",
    "Client",
    "IMetric",
    "IRunner",
    "MaxParallelismReachedException",
    "OptimizationComplete",
    "RangeParameterConfig",
    "TrialStatus",
    "make_storable",
]


def make_storable(cls: type, number: int) -> None:
    """Teach Ax to save and load experiments that have objects of this class, a metric or a runner.

    Without this, each user would have to pass registries to each client that saves or loads.

    Args:
        cls: the class. Ax's JSON has its name.
        number: stands for the class in databases.
    """
    is_metric = issubclass(cls, IMetric)
    numbers = metric_registry.CORE_METRIC_REGISTRY if is_metric else runner_registry.CORE_RUNNER_REGISTRY
    numbers[cls] = number
    registry.CORE_ENCODER_REGISTRY[cls] = encoders.metric_to_dict if is_metric else encoders.runner_to_dict
    registry.CORE_DECODER_REGISTRY[cls.__name__] = cls

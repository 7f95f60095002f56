"""All that this project uses of Ax, so that only this module has to follow its changes.

Ax builds a Jinja environment, 500 modules and the registries of its storage when it is imported: 5 seconds.
"""

from __future__ import annotations

from ax.api.client import Client
from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig
from ax.api.protocols.metric import IMetric
from ax.api.protocols.runner import IRunner
from ax.core.experiment import Experiment
from ax.core.metric import Metric
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
    "fetched_metrics",
    "make_storable",
    "objectives_without_metric",
]


def objectives_without_metric(experiment: Experiment) -> list[str]:
    """Return the names in the objective and its constraints for which no metric is configured.

    Ax completes their trials without an outcome.
    """
    config = experiment.optimization_config
    return sorted(config.metric_names - set(fetched_metrics(experiment))) if config is not None else []


def fetched_metrics(experiment: Experiment) -> list[str]:
    """Return the names of the metrics that Ax fetches itself. Others are plain names for outcomes attached by hand."""
    return [
        name
        for name, metric in experiment.metrics.items()
        if type(metric).fetch_trial_data is not Metric.fetch_trial_data
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

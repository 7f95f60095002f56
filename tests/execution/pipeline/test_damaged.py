"""Pipelines that are damaged at random, in files and in the answers of a host."""

import contextlib
import copy
import os
from collections.abc import Collection
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from tests.execution.host.answers_of_kfp import polls
from torchx_kfp.errors import PipelineError, TorchxKfpError
from torchx_kfp.execution.host.settings import Settings
from torchx_kfp.execution.host.snapshot import RunPipeline, Snapshot
from torchx_kfp.execution.host.submission import check_submission
from torchx_kfp.execution.local.preflight import check_supported, find_not_applied
from torchx_kfp.execution.model.workflow import describe, measure
from torchx_kfp.execution.pipeline.load import pipeline_from_documents
from torchx_kfp.execution.pipeline.values import complete_arguments
from torchx_kfp.execution.pipeline.walk import outline
from torchx_kfp.execution.runs.events import encode_event
from torchx_kfp.execution.runs.state import RunState

#: The number of damaged pipelines: more of them find more errors.
SEEDS = int(os.environ.get("TORCHX_KFP_SEEDS", "10"))
#: Values that do not belong where they are put.
VALUES: list[Any] = [
    *[None, True, 0, -1, 10**400, 1e308, 1e400, float("nan"), [], {}, [[]], {"a": {}}, {1: 2}, [None], [{}]],
    *["", "x", "a/../b", "\0", "\ud800", "{{$}}", "{{$.inputs.parameters['x']}}", "0" * 5000, "[" * 2000, "[x"],
]
KEYS: list[Any] = [7, "", "x", None, "..", "root"]


def damage(documents: Any, random: Random, values: list[Any] = VALUES, closed: Collection[str] = ()) -> None:
    """Remove, rename, repeat, exchange or replace parts of the documents, but nothing below the closed keys."""
    places: list[tuple[Any, Any]] = []
    stack: list[Any] = [documents]
    while stack:
        value = stack.pop()
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            places.append((value, key))
            if isinstance(value[key], (dict, list)) and key not in closed:
                stack.append(value[key])
    for _ in range(random.choice([1, 1, 1, 2, 3]) if places else 0):
        value, key = random.choice(places)
        other, there = random.choice(places)
        with contextlib.suppress(KeyError, IndexError):
            what = random.randrange(5)
            if what == 0:
                del value[key]
            elif what == 1 and isinstance(value, dict):
                value[random.choice(KEYS)] = value.pop(key)
            elif what == 2 and isinstance(value, list):
                value.append(copy.deepcopy(value[key]))
            elif what == 3:
                value[key] = copy.deepcopy(other[there])
            else:
                value[key] = copy.deepcopy(random.choice(values))


def whole(answer: dict[str, Any]) -> None:
    """Follow a run whose host gives this answer."""
    try:
        pipeline = RunPipeline.of(answer)
    except PipelineError:
        return
    state = RunState()
    for step in Snapshot.of(answer, pipeline).new:
        encode_event(step.event)
        state.on_event(step.event)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_damaged_pipelines_are_refused_with_a_message(seed):
    """Whatever the damage, a pipeline is loaded and checked, or rejected with an error of this project."""
    random = Random(seed)
    answer = polls("succeeded")[-1]
    goldens = sorted(Path(__file__).parents[2].glob("pipelines/goldens/*.yaml"))
    for _ in range(20):
        documents = list(yaml.load_all(random.choice(goldens).read_text(), Loader=yaml.CSafeLoader))
        damage(documents, random)
        spec = copy.deepcopy(answer["pipeline_spec"])
        damage([spec], random)
        whole({**answer, "pipeline_spec": spec})
        with contextlib.suppress(TorchxKfpError):
            pipeline = pipeline_from_documents(documents, "p.yaml")
            outline(pipeline)
            describe(measure(pipeline))
            find_not_applied(pipeline)
            check_submission(pipeline, complete_arguments(pipeline, {}), Settings())
            check_supported(pipeline)

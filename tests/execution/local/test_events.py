"""Events as JSON and back: the form that a run's folder keeps and ``--json`` prints."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.facts import says
from torchx_kfp.execution.pipeline.artifacts import ArtifactList
from torchx_kfp.execution.pipeline.spec import ArtifactType
from torchx_kfp.execution.runs import events
from torchx_kfp.execution.runs.events import VERSION, decode_event, encode_event
from torchx_kfp.local import (
    Artifact,
    Event,
    RunStarted,
    StageFinished,
    StageResult,
    StageWaiting,
    State,
)

TEXT = st.text(max_size=8)
#: A stage may be in a folder whose name is not UTF-8: Python represents its bytes as surrogates.
PATHS = st.binary(min_size=1, max_size=8).filter(lambda name: b"\0" not in name).map(os.fsdecode).map(Path)
TIMES = st.floats(0, 2e9)
#: The largest count that JSON has exactly, in any language.
MOST = 2**53 - 1
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
PARAMETERS = st.dictionaries(TEXT, VALUES, max_size=3)
#: Names that a tracker accepts, and names that other programs may have put there.
NAMES = TEXT | st.sampled_from(["number", "object"])
RESULTS = st.none() | st.dictionaries(
    NAMES,
    st.recursive(
        st.booleans() | st.integers() | st.floats() | TEXT,
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=2),
        max_leaves=4,
    ),
    max_size=3,
)
ARTIFACT = st.builds(Artifact, TEXT, st.builds(ArtifactType, TEXT, TEXT), TEXT, PARAMETERS)
NUMBERS = st.integers(1, MOST)
#: The type of a field -> its values. A new field or event whose type is here needs nothing else.
FIELDS: dict[Any, Any] = {
    str: TEXT,
    int: NUMBERS,
    float: TIMES,
    bool: st.booleans(),
    State: st.sampled_from(State),
    str | None: st.none() | TEXT,
    int | None: st.none() | NUMBERS,
    float | None: st.none() | TIMES,
    Path | None: st.none() | PATHS,
    tuple[str, ...]: st.lists(TEXT, max_size=2).map(tuple),
    Mapping[str, str]: st.dictionaries(TEXT, TEXT, max_size=2),
    Mapping[str, Any]: PARAMETERS,
    Mapping[str, Any] | None: RESULTS,
    Mapping[str, Artifact | list[Artifact]]: st.dictionaries(
        TEXT, ARTIFACT | st.lists(ARTIFACT, max_size=2).map(ArtifactList), max_size=2
    ),
}


def values_of(kind: Any) -> Any:
    """Return instances of a dataclass."""
    return st.builds(kind, **{name: FIELDS[hint] for name, hint in get_type_hints(kind).items()})


FIELDS[StageResult] = values_of(StageResult)
EVENTS = st.one_of(map(values_of, get_args(Event)))


# The time that generating takes says more about the machine than about the code.
@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(EVENTS)
def test_every_event_comes_back_from_one_line(event):
    line = json.dumps(encode_event(event))
    assert "\n" not in line
    decoded = decode_event(json.loads(line))
    assert type(decoded) is type(event)
    assert repr(decoded) == repr(event)  # NaN is not equal to itself


def result(**fields):
    return StageResult("train[2]", "train", State.SUCCEEDED, **fields)


def test_the_form():
    """Other programs read it: a change here needs a new VERSION unless it only adds something."""
    event = StageFinished(
        result(
            log_file=Path("/runs/x/log.txt"),
            outputs={"n": 1},
            artifacts={"all": [Artifact("all", ArtifactType("system.Model", "0.0.1"), "s3://m", {"k": 1})]},
            results={"loss": 0.5, "text": "NaN"},
        ),
        time=1.5,
    )
    assert encode_event(event) == {
        "event": "stage_finished",
        "time": 1.5,
        "name": "train[2]",
        "task": "train",
        "state": "succeeded",
        "exit_code": None,
        "reason": "",
        "duration": 0.0,
        "attempts": 0,
        "pod_name": "",
        "log_file": "/runs/x/log.txt",
        "outputs": {"n": 1},
        "artifacts": {
            "all": [
                {
                    "name": "all",
                    "type": "system.Model",
                    "version": "0.0.1",
                    "uri": "s3://m",
                    "metadata": {"k": 1},
                }
            ]
        },
        "execution_id": None,
        "tracker_base": None,
        "results": {"loss": 0.5, "text": "NaN"},
        "inputs": {},
        "started_at": None,
        "code": "",
        "cached_from": "",
        "replicas": None,
        "files": [],
        "may_fail": False,
    }
    assert encode_event(RunStarted("p", "p-1", Path("/runs/p-1"), time=1.5)) == {
        "event": "run_started",
        "time": 1.5,
        "pipeline": "p",
        "run_id": "p-1",
        "folder": "/runs/p-1",
        "not_applied": [],
        "arguments": {},
        "retried": False,
        "differs": [],
        "link": "",
        "version": VERSION,
    }


def test_what_a_later_version_adds_is_passed_over():
    assert decode_event({"event": "stage_paused", "time": 1.0}) is None
    content = {**encode_event(StageWaiting("a", "b", time=1.0)), "priority": 7}
    assert decode_event(content) == StageWaiting("a", "b", time=1.0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, says("event of a run", "KeyError", "'event'")),
        ([], says("event of a run", "TypeError", "list")),
        (1, says("event of a run", "TypeError", "'int'")),
        ({"event": ["x"]}, says("event of a run", "TypeError", "'list'")),
        ({"event": "stage_waiting"}, says("event of a run", "StageWaiting", "'name'", "'task'")),
        ({**encode_event(StageFinished(result())), "state": "lost"}, says("'lost'", "State")),
        ({**encode_event(StageFinished(result())), "artifacts": {"a": 1}}, says("event of a run", "'artifacts' is 1")),
        ({**encode_event(StageFinished(result())), "duration": math.nan}, says("event of a run", "'duration' is nan")),
        ({**encode_event(StageFinished(result())), "attempts": True}, says("event of a run", "'attempts' is True")),
    ],
)
def test_what_is_no_event(content, message):
    with pytest.raises(ValueError, match=message):
        decode_event(content)


def test_the_names_in_the_form_stay() -> None:
    """Files of runs have them, and programs that read ``--json``: a class that is renamed would change them."""
    assert list(events.NAMES) == [
        "run_started",
        "loop_started",
        "stage_waiting",
        "stage_pending",
        "stage_started",
        "stage_replicas",
        "stage_retried",
        "pipeline_retried",
        "stage_finished",
        "run_ending",
        "run_finished",
    ]

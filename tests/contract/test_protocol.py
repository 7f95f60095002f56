"""The stage protocol: decoding returns the values that were encoded."""

from __future__ import annotations

import importlib.util

import hypothesis
import pytest
from hypothesis import strategies as st

from tests.facts import says
from torchx_kfp.contract import protocol
from torchx_kfp.contract.protocol import PodAttempt, StageContext, superseded
from torchx_kfp.errors import TrackerError

#: Text that environment variables can contain.
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
HOSTILE = (
    TEXT | st.text("a$(){}[]\"'\\%\n\t {{=üж🔑") | st.sampled_from(["{{workflow.name}}", "$(HOME)", "$$", "${x}", "''"])
)
RUN_IDS = HOSTILE.filter(bool)
PARENTS = st.dictionaries(HOSTILE, RUN_IDS | st.lists(RUN_IDS, max_size=4).map(tuple), max_size=5)
TRACKER_NAMES = st.lists(
    HOSTILE.filter(lambda name: name and not set(name) & set(",=") and name.upper() != "TORCHX_KFP"),
    unique_by=str.upper,
    max_size=3,
)
TRACKERS = TRACKER_NAMES.flatmap(lambda names: st.fixed_dictionaries({name: st.none() | RUN_IDS for name in names}))
CONTEXTS = st.builds(StageContext, tracker_base=RUN_IDS, run_id=RUN_IDS, parents=PARENTS, trackers=TRACKERS)


@hypothesis.given(CONTEXTS)
def test_encode_and_decode_are_a_pair(context: StageContext) -> None:
    environ = protocol.encode_context(context)
    decoded = protocol.decode_context(environ)
    assert decoded == context
    assert list(decoded.parents) == list(context.parents), "in order"
    assert list(decoded.trackers) == list(context.trackers), "in order"
    configs = {protocol.tracker_config_variable(name) for name in context.trackers}
    assert set(environ) <= {*protocol.VARIABLES, *configs}
    assert all(isinstance(value, str) and "\0" not in value for value in environ.values())


@hypothesis.given(st.lists(HOSTILE, unique=True))
def test_nothing_in_an_alias_is_rewritten_on_the_way(aliases: list[str]) -> None:
    text = protocol.encode_parents(dict.fromkeys(aliases, "p/s/e"))
    assert text.isascii()
    assert text.isprintable()
    assert "$" not in text
    assert text.count("{") == 1
    assert text.count('"') == 4 * len(aliases), "around names and execution ids alone"
    assert list(protocol.decode_parents(text)) == aliases


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", says("Got: ''", "Expecting value", "TORCHX_PARENT_RUN_IDS")),
        ("{", r"Got: '\{'\. \(Expecting"),
        ("p1/train/e1", r"Got: 'p1/train/e1'\. \(Expecting value"),
        ("[]", r"Got: '\[\]'\.$"),
        ("null", r"Got: 'null'\.$"),
        ('{"a": 1}', r"The alias 'a' has 1\.$"),
        ('{"a": null}', r"The alias 'a' has None\.$"),
        ('{"a": {"b": "c"}}', r"The alias 'a' has \{'b': 'c'\}\.$"),
        ('{"a": "x", "b": ["y", 1]}', r"The alias 'b' has \['y', 1\]\.$"),
        ('{"a": "x", "b": "y", "a": "z"}', says("'a'", "TORCHX_PARENT_RUN_IDS")),
        ('{"a": "x", "\\u0061": "z"}', says("'a'", "TORCHX_PARENT_RUN_IDS")),
    ],
)
def test_malformed_parents(text: str, message: str) -> None:
    with pytest.raises(TrackerError, match=message) as caught:
        protocol.decode_parents(text)
    assert str(caught.value).startswith("TORCHX_PARENT_RUN_IDS must be a JSON object")


def test_a_parent_that_torchx_alone_gave() -> None:
    environ = {"TORCHX_TRACKER_BASE": "/x", "TORCHX_JOB_ID": "a", "TORCHX_PARENT_RUN_ID": "b"}
    assert protocol.decode_context(environ).parents == {"parent": "b"}


def test_torchx_knows_these_names() -> None:
    from torchx.tracker import api

    names = importlib.import_module("torchx.settings") if importlib.util.find_spec("torchx.settings") else api
    assert names.ENV_TORCHX_JOB_ID == protocol.JOB_ID
    assert names.ENV_TORCHX_PARENT_RUN_ID == protocol.PARENT_RUN_ID
    assert names.ENV_TORCHX_TRACKERS == protocol.TRACKERS
    config = api.tracker_config_env_var_name(protocol.TRACKER_NAME)
    assert config == protocol.TRACKER_CONFIG == protocol.tracker_config_variable(protocol.TRACKER_NAME)
    assert api.tracker_config_env_var_name("größe") == protocol.tracker_config_variable("größe")


def test_trackers_as_others_set_them() -> None:
    """TorchX's own runner may leave out this project's tracker, and an engine may fill in an empty configuration."""
    assert protocol.decode_trackers({}) == protocol.decode_trackers({"TORCHX_TRACKERS": ""}) == {}
    environ = {"TORCHX_TRACKERS": "a,torchx_kfp,b,", "TORCHX_TRACKER_A_CONFIG": "", "TORCHX_TRACKER_B_CONFIG": "x,y"}
    assert protocol.decode_trackers(environ) == {"a": None, "b": "x,y"}


@pytest.mark.parametrize(
    ("execution", "parsed"),
    [
        ("pod-7", ("pod-7", "", 1)),
        ("pod-7__2", ("pod-7", "", 2)),
        ("pod-7_12345678", ("pod-7", "12345678", 1)),
        ("pod-7_12345678_13", ("pod-7", "12345678", 13)),
        ("run/stage/train-2_1_4", ("train-2", "1", 4)),
        ("run_1/stage/model_a_b", ("model", "a", 1)),
        ("", ("", "", 1)),
    ],
)
def test_the_parts_of_an_execution(execution: str, parsed: tuple[str, str, int]) -> None:
    assert PodAttempt.parse(execution) == parsed


#: As ``pipeline.walk`` makes them.
KFP = "0b5a1f3c-5a1f-4b62-ae0c-601f7270d2b4"
LOCAL = "fit-20261123-120000-0a1b2c"
INCARNATIONS = st.sampled_from(["", "_0b5a1f3c", "_99999999", "_1", "_2", "_10"])
#: Run ids of KFP, of this machine, and keys of other people that look much the same.
ATTEMPTS = st.builds(
    "{}/{}/{}{}{}".format,
    st.sampled_from(["3fa2c1d0-1b1c-4a3b-9d8e-000000000000", LOCAL, "a", "http:"]),
    st.sampled_from(["fit", "read"]),
    st.sampled_from(["fit-0", "fit-1", "fit-10", "fit", "c"]),
    INCARNATIONS,
    st.sampled_from(["", "_2", "_3", "_10"]),
)


@hypothesis.given(st.sets(ATTEMPTS | RUN_IDS), st.data())
def test_the_attempt_that_recorded_last_is_left(run_ids: set[str], data: st.DataObject) -> None:
    times = {run_id: data.draw(st.integers(0, 3)) for run_id in sorted(run_ids)}
    gone = superseded(times)
    assert gone <= {run_id for run_id in run_ids if run_id.count("/") == 2 and not run_id.startswith("http:")}
    left = run_ids - gone
    assert superseded({run_id: times[run_id] for run_id in left}) == set(), "what is left are last attempts"
    for run_id in gone:
        pod = PodAttempt.parse(run_id).pod
        others = [key for key in left if key.rpartition("/")[0] == run_id.rpartition("/")[0]]
        same = [key for key in others if PodAttempt.parse(key).pod == pod]
        assert any(times[key] >= times[run_id] for key in same), "another name is another stage"


@pytest.mark.parametrize(
    ("earlier", "last"),
    [
        (f"{LOCAL}/fit/fit_1", f"{LOCAL}/fit/fit_2"),
        (f"{LOCAL}/fit/fit_9_3", f"{LOCAL}/fit/fit_10"),
        (f"{LOCAL}/fit/fit-2_1", f"{LOCAL}/fit/fit-2_2_2"),
        (f"{LOCAL}/fit/fit_1_2", f"{LOCAL}/fit/fit_1_3"),
        (f"{KFP}/fit/pod-1_0b5a1f3c", f"{KFP}/fit/pod-1_0b5a1f3c_2"),
        (f"{KFP}/fit/pod-1_0b5a1f3c_3", f"{KFP}/fit/pod-1_99999999"),
    ],
)
def test_an_attempt_supersedes_those_before_it(earlier: str, last: str) -> None:
    assert superseded({last: 2.0, earlier: 1.0}) == {earlier}
    assert superseded({last: 1.0, earlier: 2.0}) == {last}, "the one that recorded last counts"
    assert superseded({last: 1.0}) == superseded({earlier: 1.0}) == set()


@pytest.mark.parametrize(("earlier", "last"), [("p", "p_2"), ("p_9", "p_10"), ("p_0b5a1f3c", "p_0b5a1f3c_2")])
def test_the_number_decides_between_equal_times(earlier: str, last: str) -> None:
    assert superseded({f"{KFP}/fit/{last}": 1.0, f"{KFP}/fit/{earlier}": 1.0}) == {f"{KFP}/fit/{earlier}"}

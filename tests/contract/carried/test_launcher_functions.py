"""The pure functions of the launcher: manifests, settings of the task, states of engines, times, numbers and text."""

from __future__ import annotations

import copy
import email
import http.client
import io
import socket
import sys
import threading
import urllib.request
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.facts import says
from torchx_kfp.contract.carried import cluster_api, engine_object, replica_roles
from torchx_kfp.contract.specification import ReplicaCount

#: What manifests have that is not a marker. ``$`` is the kubelet's, ``%`` and ``@`` are nobody's within text.
CONSTANTS = ["$(HOME)", "$$5", "${X}", "100%", "%(name)s", "@name", "{{workflow.name}}", ""]
keys = st.sampled_from(["spec", "a.b/c", "env", "$(K)", "%(name)s"])
manifests: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from(CONSTANTS),
    lambda nodes: st.lists(nodes, max_size=3) | st.dictionaries(keys, nodes, max_size=3),
    max_leaves=12,
)


def marker(name: str) -> dict[str, str]:
    return {"@": name}


# fill


@given(manifests)
def test_a_manifest_without_markers_stays(manifest: Any) -> None:
    before = copy.deepcopy(manifest)
    assert replica_roles.fill(manifest, {"name": "train-1"}, {}) == manifest == before


@pytest.mark.parametrize(
    ("node", "filled"),
    [
        (marker("name"), "train-1"),
        (marker("count"), 3),
        ({"metadata": {"name": marker("name"), "note": "@name"}}, {"metadata": {"name": "train-1", "note": "@name"}}),
        ([marker("words")], ["a", "$$(b)"]),
        (["sh", marker("words"), "end"], ["sh", "a", "$$(b)", "end"]),
        ([marker("words"), marker("words")], ["a", "$$(b)", "a", "$$(b)"]),
        ([marker("none"), "end"], ["end"]),
        ([marker("name"), marker("count")], ["train-1", 3]),
        # Only the items of a marker's list take its place.
        ([["x", "y"], [marker("words")]], [["x", "y"], ["a", "$$(b)"]]),
        ([[]], [[]]),
        ({"list": marker("words")}, {"list": ["a", "$$(b)"]}),
    ],
)
def test_markers_become_values(node: Any, filled: Any) -> None:
    values = {"name": "train-1", "count": 3, "words": ["a", "$$(b)"], "none": []}
    before = copy.deepcopy((node, values))
    assert replica_roles.fill(node, values, {}) == filled
    assert (node, values) == before


@given(st.lists(st.lists(manifests, max_size=3), max_size=4), st.lists(manifests, max_size=3))
def test_lists_take_their_markers_places(lists: list[list[Any]], between: list[Any]) -> None:
    node: list[Any] = []
    expected: list[Any] = []
    for number, items in enumerate(lists):
        node += [marker(str(number)), *between]
        expected += [*items, *between]
    assert replica_roles.fill(node, {str(number): items for number, items in enumerate(lists)}, {}) == expected


def test_roles_do_not_share_values() -> None:
    """Settings of the task are added to each pod, also if two have the same list."""
    pod = {"containers": [{"env": marker("env"), "volumeMounts": []}], "volumes": []}
    config = {"env": [{"name": "EXTRA", "value": "1"}]}
    values: dict[str, Any] = {"env": [{"name": "A", "value": "b"}]}
    for filled in replica_roles.fill([pod, pod], values, config):
        assert [one["name"] for one in filled["containers"][0]["env"]] == ["A", "EXTRA"]
    assert len(values["env"]) == 1


@pytest.mark.parametrize("value", ["x", ""])
def test_only_a_pod_has_containers(value: object) -> None:
    """Labels and annotations can have any name."""
    node = {"metadata": {"annotations": {"containers": value}}}
    assert replica_roles.fill(node, {}, {"nodeSelector": {"pool": "gpu"}}) == node


# configure


def pod(**fields: Any) -> dict[str, Any]:
    container = {
        "name": "trainer",
        "env": [{"name": "TORCHX_REPLICA_ID", "value": "0"}, {"name": "OWN", "value": "app"}],
        "volumeMounts": [{"name": "dshm", "mountPath": "/dev/shm"}, {"name": "mount-0", "mountPath": "/data"}],
        **fields.pop("container", {}),
    }
    volumes = [{"name": "dshm", "emptyDir": {"medium": "Memory"}}, {"name": "mount-0", "hostPath": {"path": "/d"}}]
    return {"containers": [container], "volumes": volumes, **fields}


def configured(config: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    before = copy.deepcopy(config)
    made = replica_roles.configure(pod(**fields), config)
    assert config == before
    return made


#: KFP's driver writes all fields, or some.
NOTHING = {"affinity": None, "env": None, "nodeSelector": None, "resources": {}, "tolerations": None, "volumes": None}


@pytest.mark.parametrize("config", [{}, NOTHING, {"resources": None}, {"resources": {"limits": None}}])
def test_nothing_is_set_on_the_task(config: dict[str, Any]) -> None:
    resources = {"limits": {"cpu": "2"}, "requests": {"cpu": "2"}}
    have = pod(container={"resources": resources}, nodeSelector={"a": "b"}, tolerations=[{"key": "own"}])
    assert configured(
        config, container={"resources": copy.deepcopy(resources)}, nodeSelector={"a": "b"}, tolerations=[{"key": "own"}]
    ) == {**have, "nodeSelector": {"a": "b"}, "tolerations": [{"key": "own"}]}


@pytest.mark.parametrize(
    ("have", "asked", "both"),
    [
        ({}, {"limits": {"cpu": "1"}}, {"limits": {"cpu": "1"}}),
        (
            {"requests": {"cpu": "4", "memory": "1G"}, "limits": {"cpu": "4", "memory": "1G"}},
            {"limits": {"memory": "96M"}},
            # The request of 1G would be above the limit. Without one, Kubernetes takes the limit.
            {"requests": {"cpu": "4"}, "limits": {"cpu": "4", "memory": "96M"}},
        ),
        (
            {"requests": {"memory": "1G"}, "limits": {"memory": "1G"}},
            {"requests": {"memory": "2G"}, "limits": {"memory": "3G"}},
            {"requests": {"memory": "2G"}, "limits": {"memory": "3G"}},
        ),
        (
            {"requests": {"cpu": "4"}, "limits": {"cpu": "4"}},
            {"requests": {"cpu": "1"}},
            {"requests": {"cpu": "1"}, "limits": {"cpu": "4"}},
        ),
        (
            {"limits": {"cpu": "4"}},
            {"limits": {"nvidia.com/gpu": "1"}, "requests": {}},
            {"limits": {"cpu": "4", "nvidia.com/gpu": "1"}},
        ),
    ],
)
def test_resources_of_the_task_win(have: Any, asked: Any, both: Any) -> None:
    made = configured({"resources": asked}, container={"resources": have} if have else {})
    assert {kind: each for kind, each in made["containers"][0]["resources"].items() if each} == both


def test_where_the_task_says_to_run() -> None:
    config = {
        "affinity": {"nodeAffinity": {}},
        "nodeSelector": {"pool": "task", "more": "x"},
        "tolerations": [{"key": "task"}],
    }
    made = configured(config, affinity={"podAffinity": {}}, nodeSelector={"pool": "app"}, tolerations=[{"key": "app"}])
    assert made["affinity"] == {"nodeAffinity": {}}
    assert made["nodeSelector"] == {"pool": "task", "more": "x"}
    assert made["tolerations"] == [{"key": "app"}, {"key": "task"}]


def test_variables_of_the_task_do_not_replace_those_of_the_application() -> None:
    """As in a stage without an engine, whose command sets the application's and the protocol's."""
    env = [
        {"name": "EXTRA", "value": "1"},
        {"name": "OWN", "value": "task"},
        {"name": "TORCHX_REPLICA_ID", "value": "9"},
        {"name": "KFP_RUN_ID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "MY_KFP_ID", "value": "2"},
    ]
    assert configured({"env": env})["containers"][0]["env"] == [
        {"name": "TORCHX_REPLICA_ID", "value": "0"},
        {"name": "OWN", "value": "app"},
        {"name": "EXTRA", "value": "1"},
        {"name": "MY_KFP_ID", "value": "2"},
    ]


@pytest.mark.parametrize("name", ["dshm", "shm"])
def test_shared_memory_that_the_task_limits(name: str) -> None:
    """``kfp.kubernetes.empty_dir_mount(task, name, "/dev/shm", medium="Memory", size_limit="8Gi")``."""
    volume = {"name": name, "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}}
    mount = {"name": name, "mountPath": "/dev/shm"}
    made = configured({"volumes": [volume], "volumeMounts": [mount]})
    assert [one for one in made["containers"][0]["volumeMounts"] if one["mountPath"] == "/dev/shm"] == [mount]
    assert [one for one in made["volumes"] if one["name"] == name] == [volume]


names = st.sampled_from(["dshm", "mount-0", "a", "b"])
paths = st.sampled_from(["/dev/shm", "/data", "/x", "/y"])
mounts = st.lists(st.builds(lambda name, path: {"name": name, "mountPath": path}, names, paths), max_size=3)
volumes = st.lists(st.builds(lambda name: {"name": name, "emptyDir": {"sizeLimit": "1Gi"}}, names), max_size=3)


@given(mounts, volumes)
def test_volumes_of_the_task_win(mounts: list[dict[str, str]], volumes: list[dict[str, Any]]) -> None:
    mounts = list({one["mountPath"]: one for one in mounts}.values())
    volumes = list({one["name"]: one for one in volumes}.values())
    made = configured({"volumeMounts": mounts, "volumes": volumes})
    for key, found, have, added in (
        ("mountPath", made["containers"][0]["volumeMounts"], pod()["containers"][0]["volumeMounts"], mounts),
        ("name", made["volumes"], pod()["volumes"], volumes),
    ):
        assert len({one[key] for one in found}) == len(found), "Kubernetes takes each place and each name once"
        assert {one[key]: one for one in found} == {
            **{one[key]: one for one in have},
            **{one[key]: one for one in added},
        }


# pieces


def answered(*chunks: bytes, ends: bool) -> Iterator[bytes]:
    """Return the pieces of a real answer in these chunks; its connection breaks after them, unless it ends."""
    said = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    said += b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n" * ends

    def answer() -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(1 << 16)
            connection.sendall(said)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer)
        thread.start()
        with urllib.request.urlopen(f"http://127.0.0.1:{server.getsockname()[1]}") as stream:
            yield from cluster_api.pieces(stream)
        thread.join()


def test_the_pieces_of_an_answer() -> None:
    assert list(answered(b"a\nb", b"c\n", b"\nd", ends=True)) == [b"a\n", b"bc\n", b"\n", b"d"]
    long = b"x" * 200_000
    found = list(answered(b"a\n" + long, b"y\nb\n", ends=True))
    assert (found[0], found[-1], b"".join(found)) == (b"a\n", b"b\n", b"a\n" + long + b"y\nb\n")
    assert max(map(len, found)) < 1 << 17


@pytest.mark.parametrize(("chunks", "whole"), [([b"a\nb\n"], [b"a\n", b"b\n"]), ([b"a\n", b"b"], [b"a\n"]), ([], [])])
def test_a_connection_that_breaks_between_chunks_is_not_the_end(chunks: list[bytes], whole: list[bytes]) -> None:
    found: list[bytes] = []
    with pytest.raises(http.client.IncompleteRead):
        found.extend(answered(*chunks, ends=False))
    assert found == whole


# state_of and why

JOB = {"state": ["status", "conditions"], "succeeded": ["Complete"], "failed": ["Failed"]}
JOBSET = {"state": ["status", "terminalState"], "succeeded": ["Completed"], "failed": ["Failed"]}
VOLCANO = {"state": ["status", "state", "phase"], "succeeded": ["Completed"], "failed": ["Failed", "Aborted"]}


def conditions(**states: str) -> dict[str, Any]:
    return {"status": {"conditions": [{"type": name, "status": status} for name, status in states.items()]}}


@pytest.mark.parametrize(
    ("spec", "found", "state"),
    [
        (JOB, {}, ""),
        (JOB, {"status": {}}, ""),
        (JOB, {"status": None}, ""),
        (JOB, {"status": {"conditions": None}}, ""),
        (JOB, conditions(Suspended="True", SuccessCriteriaMet="True"), ""),
        (JOB, conditions(Complete="False", Failed="Unknown"), ""),
        (JOB, conditions(SuccessCriteriaMet="True", Complete="True"), "succeeded"),
        (JOB, conditions(FailureTarget="True"), ""),
        (JOB, conditions(FailureTarget="True", Failed="True"), "failed"),
        (JOBSET, conditions(Completed="True"), ""),
        (JOBSET, {"status": {"terminalState": ""}}, ""),
        (JOBSET, {"status": {"terminalState": "Completed"}}, "succeeded"),
        (JOBSET, {"status": {"terminalState": "Failed"}}, "failed"),
        (VOLCANO, {"status": {"state": {}}}, ""),
        (VOLCANO, {"status": {"state": {"phase": "Restarting"}}}, ""),
        (VOLCANO, {"status": {"state": {"phase": "Completed"}}}, "succeeded"),
        (VOLCANO, {"status": {"state": {"phase": "Aborted"}}}, "failed"),
    ],
)
def test_states(spec: Any, found: Any, state: str) -> None:
    assert engine_object.state_of(spec, found) == state


@pytest.mark.parametrize(
    ("conditions", "message"),
    [
        (None, ""),
        ([], ""),
        ([{"type": "Failed", "status": "True", "message": "too many"}], ": too many"),
        ([{"type": "Failed", "status": "False", "message": "too many"}], ""),
        ([{"type": "Failed", "status": "True"}], ""),
        ([{"type": "Complete", "status": "True", "message": "all done"}], ""),
        # JobSet's own names, and conditions that Volcano writes.
        ([{"type": "FailureTarget", "status": "True", "message": "limit"}], ": limit"),
        ([{"status": "Running"}, {"status": "Aborted"}], ""),
    ],
)
def test_why_an_object_has_failed(conditions: Any, message: str) -> None:
    assert engine_object.why({"status": {"conditions": conditions}}) == message
    assert engine_object.why({}) == engine_object.why({"status": None}) == ""


# The first failure, and the API server's warnings


def ended_at(second: int, code: int, **metadata: str) -> Any:
    """Return what is added to a pod that has ended."""
    state = {"terminated": {"finishedAt": f"2026-01-01T00:00:0{second}Z", "exitCode": code}}
    return metadata, {"phase": "Failed", "containerStatuses": [{"name": "trainer", "state": state}]}


@pytest.mark.parametrize(
    ("ends", "code"),
    [
        ([ended_at(1, 7), ended_at(2, 143, deletionTimestamp="t")], 7),
        # The engine has ended the others within the second of the first failure.
        ([ended_at(1, 143, deletionTimestamp="t"), ended_at(1, 7)], 7),
        # A pod that is evicted fails first, although somebody has deleted it.
        ([ended_at(1, 143, deletionTimestamp="t"), ended_at(2, 7)], 143),
        # One that has failed may be deleted before it is gone.
        ([ended_at(1, 7), ended_at(1, 143, deletionTimestamp="t"), ended_at(1, 7, deletionTimestamp="t")], 7),
        # A pod that is lost is missed later than the engine has ended the others.
        ([ended_at(1, 143, deletionTimestamp="t"), None], 1),
        ([ended_at(1, 7), ended_at(1, 143, deletionTimestamp="t"), None], 7),
    ],
)
def test_which_replica_has_failed_first(ends: list[Any], code: int, capfd: pytest.CaptureFixture[str]) -> None:
    stage = engine_object.Stage.__new__(engine_object.Stage)
    stage.name = "train-1"
    stage.spec = {"index": "index", "logs": "none", "roles": [{"name": "trainer"}]}
    stage.replicas = {}
    for number, end in enumerate(ends):
        added, status = end or ({}, {})
        metadata = {"uid": f"{number}", "name": f"p{number}", "labels": {"torchx-kfp/role": "trainer"}, **added}
        pod = {"metadata": {**metadata, "annotations": {"index": f"{number}"}}, "spec": {}, "status": status}
        replica = stage.replicas[f"{number}"] = cluster_api.Replica(stage, pod)
        replica.lines.append(b"line")
        replica.update(pod)
        if end:
            replica.update({**pod, "metadata": {**metadata, "deletionTimestamp": "later"}})
        else:
            replica.gone, replica.ended = True, "2026-01-01T00:00:02Z"
    assert stage.explain("") == code


def test_warnings_of_the_api_server_are_said_once(capfd: pytest.CaptureFixture[str]) -> None:
    """If the engine's version is deprecated, each answer has one, twice a second."""

    class Answer(io.BytesIO):
        status = 200
        headers = email.message_from_string('Warning: 299 - "v1alpha2 is deprecated"\nWarning: 299 - "other"\n\n')

    cluster = cluster_api.Cluster.__new__(cluster_api.Cluster)
    cluster.allowed, cluster.warned = set(), set()
    cluster.open = lambda *_: Answer(b"{}")  # type: ignore[method-assign]
    for _ in range(3):
        assert cluster.call("GET", "x") == (200, {})
    said = capfd.readouterr().err.splitlines()
    assert sorted(said) == [
        'torchx-kfp: the API server warns: 299 - "other"',
        'torchx-kfp: the API server warns: 299 - "v1alpha2 is deprecated"',
    ]


# count, texts and environment


@given(
    st.integers(1, 500), st.integers(0, 500), st.integers(-10, 1100), st.sampled_from(["{}", "{}.0", " {} ", "{}e0"])
)
def test_whole_numbers_of_replicas(least: int, more: int, number: int, form: str) -> None:
    most = least + more
    role = {"name": "trainer", "least": least, "most": most, "count": 1}
    words = ["x", form.format(number)]
    if least <= number <= most:
        assert replica_roles.count(role, words) == number
        assert isinstance(replica_roles.count(role, words), int)
    else:
        with pytest.raises(
            replica_roles.Failure, match=says("'trainer'", repr(words[1]), f"from {least} to {most}")
        ) as caught:
            replica_roles.count(role, words)
        assert ("min_replicas" in str(caught.value)) == (least > 1)
        assert (f"j='1:{most}x" in str(caught.value)) == (1 <= number < least)


@given(st.text(max_size=6) | st.floats().map(str))
@example("nan")
@example("-inf")
@example("1e400")
@example("1_0")
def test_numbers_of_replicas_of_any_kind(text: str) -> None:
    try:
        number = replica_roles.count({"name": "trainer", "most": 10, "count": 0}, [text])
    except replica_roles.Failure:
        return
    assert number == float(text)
    assert 1 <= number <= 10


def test_a_number_of_replicas_that_the_pipeline_fixes() -> None:
    assert replica_roles.count({"name": "trainer", "most": 4}, []) == 4


def test_few_replicas_that_still_run_have_names() -> None:
    assert replica_roles.tally(["a/1", "a/0"], 2, 0) == "2 of 2 replicas run"
    assert replica_roles.tally(["b/0", "a/1"], 5, 3) == "2 of 5 replicas run (a/1, b/0), 3 succeeded"
    assert replica_roles.tally(["a/0", "a/1", "a/2", "a/3"], 5, 1) == "4 of 5 replicas run, 1 succeeded"
    assert replica_roles.tally([], 2, 1) == "0 of 2 replicas run, 1 succeeded"
    for text in (replica_roles.tally(["a/0"], 2, 1), replica_roles.tally(["a/0"], 1, 0)):
        assert ReplicaCount.parse(f"torchx-kfp: {text}") == (1, 2 if "succeeded" in text else 1)


@pytest.mark.parametrize("prefix", [b"[0]:", b"[default12]:", b"[my-role0]:"])
def test_last_lines_under_torchrun(prefix: bytes) -> None:
    own = [prefix + b"one\n", prefix + b"  two\n"]
    assert replica_roles.last_lines([*own, b"box\n", prefix + b"\n", b"box\n"], 8) == own
    assert replica_roles.last_lines([*own, b"box\n"], 1) == own[1:]


def test_last_lines_while_a_thread_adds_more() -> None:
    """A process that a replica has left in another session may go on to write."""
    lines = deque([b"line\n"] * 100, maxlen=100)
    ends = threading.Event()

    def add() -> None:
        while not ends.is_set():
            lines.append(b"line\n")

    thread = threading.Thread(target=add)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread.start()
    try:
        for _ in range(2000):
            assert replica_roles.last_lines(lines, 8) == [b"line\n"] * 8
    finally:
        ends.set()
        thread.join()
        sys.setswitchinterval(interval)


@pytest.mark.parametrize("lines", [[], [b"a\n", b"[INFO]: b\n"], [b"[0]: \n", b"a [0]:b\n"]])
def test_last_lines_without_torchrun(lines: list[bytes]) -> None:
    assert replica_roles.last_lines(lines, 8) == lines


parts = st.lists(st.none() | st.integers(0, 3), max_size=6)
words_of = st.lists(st.text(max_size=5) | st.sampled_from(CONSTANTS), min_size=4, max_size=4)


@given(parts, words_of)
def test_text_of_words_and_the_index(parts: list[int | None], words: list[str]) -> None:
    assert replica_roles.texts(parts, words, "7") == "".join("7" if part is None else words[part] for part in parts)
    # The index may be the kubelet's to expand: only words are escaped.
    escaped = replica_roles.texts(parts, words, "$(ID)", lambda text: text.replace("$", "$$"))
    expected = ["$(ID)" if part is None else words[part].replace("$", "$$") for part in parts]
    assert escaped == "".join(expected)


def test_variables_of_a_role(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INHERITED", "$(HOME)")
    monkeypatch.delenv("MISSING", raising=False)
    role = {"env": [["INHERITED", None], ["MISSING", None], ["ME", [0, None]], ["EMPTY", []]]}
    assert replica_roles.environment(role, ["I am "], "3") == {
        "INHERITED": "$(HOME)",
        "MISSING": "",
        "ME": "I am 3",
        "EMPTY": "",
    }
    assert replica_roles.environment(role, ["$"], "3", str.upper)["INHERITED"] == "$(HOME)"
    assert replica_roles.environment(role, ["$"], "3", lambda text: text * 2)["ME"] == "$$3"

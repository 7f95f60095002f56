"""The pure functions of the launcher: manifests, settings of the task, numbers of replicas, and text."""

from __future__ import annotations

import copy
import sys
import threading
from collections import deque
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchx_kfp.contract.carried import replica_roles

# fill


def test_places_do_not_share_values() -> None:
    values: dict[str, Any] = {"0": {"pod": {"containers": [{"env": ["a"]}]}}}
    one, other = replica_roles.fill([{"env": {"@": "0.pod.containers.0.env"}}] * 2, values)
    one["env"].append("b")
    assert other == {"env": ["a"]}
    assert values["0"]["pod"]["containers"] == [{"env": ["a"]}]


@pytest.mark.parametrize("path", ["pod.affinity", "pod.affinity.nodeAffinity"])
def test_a_part_that_is_not_there(path: str) -> None:
    assert replica_roles.fill({"x": {"@": path}}, {"pod": {}}) == {"x": None}


def test_items_of_a_list_take_the_place_of_its_marker() -> None:
    assert replica_roles.fill([{"@": "words"}, "c", ["d"]], {"words": ["a", "b"]}) == ["a", "b", "c", ["d"]]


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
    made = pod(**fields)
    replica_roles.configure(made, config)
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


# last_lines


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

"""Roles of distributed stages: their names, ports and overlays in Kubernetes, and the roles that end the stage."""

import re
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.authoring.engines.apps import OVERLAY, app, distributed, role
from torchx_kfp import engines

pytestmark = pytest.mark.versions

LABEL = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?", re.ASCII)
#: https://kubernetes.io/docs/concepts/services-networking/service/#field-spec-ports-name: IANA's service names
PORT = re.compile(r"(?!.*--)(?=.*[a-z])[a-z0-9]([a-z0-9-]{0,13}[a-z0-9])?")
#: Any text, and text that differs little after it has been shortened.
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=80)
NAMES = st.one_of(
    TEXT,
    st.text(alphabet="ab-1_A", min_size=1, max_size=4).map(lambda text: text * 9),
    st.from_regex(r"[ab]{14,18}(-[0-4])?", fullmatch=True),
)


# Names


@given(st.lists(NAMES, min_size=1, max_size=6, unique=True))
@settings(max_examples=50)
@example(["trainer", "ps-0"])
@pytest.mark.usual
def test_names_of_roles_are_distinct_labels(given_names: list[str]) -> None:
    names = [one["name"] for one in distributed(app(*map(role, given_names)), "jobset").spec["roles"]]
    assert len(set(names)) == len(given_names)
    assert all(LABEL.fullmatch(name) and len(name) <= 16 for name in names)
    assert given_names != ["trainer", "ps-0"] or names == given_names, "names that Kubernetes accepts stay"


@given(st.lists(TEXT | st.sampled_from(["port-1", "port-2"]), max_size=6, unique=True), st.data())
@settings(max_examples=50)
@pytest.mark.usual
def test_names_of_ports_are_distinct(given_names: list[str], data: st.DataObject) -> None:
    numbers = st.lists(st.integers(1, 65535), min_size=len(given_names), max_size=len(given_names), unique=True)
    port_map = dict(zip(given_names, data.draw(numbers), strict=True))
    (pod,) = distributed(app(role(port_map=port_map))).pods()
    ports = {port["name"]: port["containerPort"] for port in pod["spec"]["containers"][0].get("ports", [])}
    assert sorted(ports.values()) == sorted(port_map.values())
    assert all(PORT.fullmatch(name) for name in ports)


# Which success is the stage's


@pytest.mark.parametrize("names", ["Trainer", ["Trainer"], ("Trainer", "Trainer")])
def test_the_roles_that_end_a_stage_have_the_names_of_the_appdef(names: Any) -> None:
    made = app(role("Trainer"), role("Server"))
    jobset = distributed(made, engines.JobSet(succeeds_with=names))
    assert jobset.manifest["spec"]["successPolicy"] == {"operator": "All", "targetReplicatedJobs": ["trainer"]}
    assert jobset.spec["success"] == ["trainer"], "also on one machine"


@pytest.mark.parametrize("names", [(), ["Trainer", "Server"]])
def test_the_success_of_all_roles(names: Any) -> None:
    found = distributed(app(role("Trainer"), role("Server")), engines.JobSet(succeeds_with=names))
    assert "successPolicy" not in found.manifest["spec"]
    assert found.spec["success"] == ["trainer", "server"]


# Overlays


@pytest.mark.parametrize("overlay", [OVERLAY, {"V1Pod": OVERLAY}, {"__torchx_overlays__": True, "V1Pod": OVERLAY}])
def test_an_overlay_in_each_form_of_torchx(overlay: dict[str, Any]) -> None:
    """Also in the one of which the nightly is not sure: several dicts without the name of a kind."""
    (pod,) = distributed(app(role(metadata={"kubernetes": overlay}))).pods()
    assert pod["metadata"]["annotations"]["team"] == "vision"
    assert pod["spec"]["nodeSelector"] == {"pool": "gpu"}
    assert [volume["name"] for volume in pod["spec"]["volumes"]] == ["dshm", "scratch"]


@pytest.mark.parametrize(
    ("volumes", "names"), [([{"name": "more"}], ["dshm", "more"]), (({"name": "only"},), ["only"])]
)
def test_an_overlay_appends_lists_and_replaces_them_by_tuples(volumes: Any, names: list[str]) -> None:
    overlay = {"spec": {"volumes": volumes}}
    before = repr(overlay)
    (pod,) = distributed(app(role(metadata={"kubernetes": overlay}))).pods()
    assert [volume["name"] for volume in pod["spec"]["volumes"]] == names
    assert repr(overlay) == before, "it is not changed"


def test_an_empty_overlay_changes_nothing() -> None:
    with_empty = distributed(app(role(metadata={"kubernetes": {}})))
    assert with_empty.spec == distributed(app(role())).spec


def test_operators_of_the_nightly() -> None:
    overlays = pytest.importorskip("torchx.specs.overlays", reason="this torchx has no overlays")
    made = role(port_map={"http": 80})
    container = {"name": "trainer", "imagePullPolicy": "Always"}
    spec = {
        overlays.JOIN("containers", on="name"): [container],
        overlays.PUT("volumes"): [{"name": "only"}],
        overlays.DEL("restartPolicy"): None,
    }
    overlays.set_overlay(made, "kubernetes", "V1Pod", {"spec": spec})
    (pod,) = distributed(app(made)).pods()
    (changed,) = pod["spec"]["containers"]
    assert (changed["imagePullPolicy"], changed["image"]) == ("Always", "app:1")
    assert pod["spec"]["volumes"] == [{"name": "only"}]
    assert "restartPolicy" not in pod["spec"]


# Rights


@pytest.mark.parametrize("engine", engines.ENGINES)
def test_rights_are_for_what_the_launcher_makes(engine: str) -> None:
    spec = distributed(app(role()), engine).spec
    made = [(spec["api"], spec["plural"]), *((api, plural) for api, plural, _ in spec["companions"])]
    groups = [("" if api == "api/v1" else api.split("/")[1], plural) for api, plural in made]
    version, _, resource = engines.ENGINES[engine].OBJECT
    assert groups == [(version.partition("/")[0], resource), *engines.ENGINES[engine].COMPANIONS]

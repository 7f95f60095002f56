"""Each field of AppDef, Role and Resource is treated as the tables say, without an engine and with each."""

import dataclasses
import re
from typing import Any

import pytest
from torchx.specs import AppDef, Resource, RetryPolicy, Role, VolumeMount

from tests.authoring.engines.apps import EFA, INSTANCE, OVERLAY
from torchx_kfp import component_spec_from_app
from torchx_kfp.authoring.appdef import FIELDS
from torchx_kfp.authoring.engines import ENGINES
from torchx_kfp.authoring.replicas import WITH_ENGINE
from torchx_kfp.errors import AppDefError

pytestmark = pytest.mark.versions

KINDS = {kind.__name__: kind for kind in (AppDef, Role, Resource)}
NO_ENGINE = "none"
TABLES = {NO_ENGINE: FIELDS, **WITH_ENGINE}


def make(engine: str, app: Any = None, role: Any = None, resource: Any = None) -> AppDef:
    """Return an application with fields that differ from those of others."""
    made = Resource(**{"cpu": 1, "gpu": 0, "memMB": 100, **(resource or {})})
    replicas = 1 if engine == NO_ENGINE else 3
    fields = {"image": "i", "entrypoint": "e", "num_replicas": replicas, "resource": made, **(role or {})}
    one = Role(**{"name": "trainer", **fields})
    return AppDef(**{"name": "train", "roles": [one], **(app or {})})


def compiled(engine: str, app: AppDef) -> str:
    # A component's description has the role's name also without an engine, where nothing else does.
    return component_spec_from_app(app, engine=None if engine == NO_ENGINE else engine)


#: For each field, another value; and the fields that both applications have, where it needs them.
OTHERS: dict[tuple[str, str], Any] = {
    ("AppDef", "name"): "other",
    ("AppDef", "roles"): [Role("a", "i", entrypoint="e"), Role("b", "i", entrypoint="e")],
    ("AppDef", "metadata"): {"key": "value"},
    ("Role", "name"): "other",
    ("Role", "image"): "j",
    ("Role", "min_replicas"): 2,
    ("Role", "base_image"): "j",
    ("Role", "entrypoint"): "f",
    ("Role", "args"): ["--lr", "0.1"],
    ("Role", "env"): {"A": "b"},
    ("Role", "num_replicas"): 4,
    ("Role", "max_retries"): 2,
    ("Role", "retry_policy"): RetryPolicy.REPLICA,
    ("Role", "resource"): Resource(cpu=2, gpu=0, memMB=100),
    ("Role", "port_map"): {"http": 80},
    ("Role", "metadata"): {"kubernetes": OVERLAY},
    ("Role", "mounts"): [VolumeMount("claim", "/data")],
    ("Role", "workspace"): "file:///src",
    ("Role", "overrides"): {"image": lambda: "j"},
    ("Resource", "cpu"): 2,
    ("Resource", "memMB"): 200,
    ("Resource", "gpu"): 1,
    ("Resource", "capabilities"): {INSTANCE: "p5"},
    ("Resource", "devices"): {EFA: 1},
    ("Resource", "tags"): {"key": "value"},
}
ALSO: dict[tuple[str, str], Any] = {("Role", "retry_policy"): {"max_retries": 2}}


def without_fewest(text: str) -> str:
    """Return the stage without the numbers with which roles may start, by which the launcher checks `replicas=`."""
    return re.sub(r'"fewest":\d+,?', "", text)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("engine", TABLES)
def test_the_tables_are_complete(engine: str, kind: str) -> None:
    assert set(TABLES) == {NO_ENGINE, *ENGINES}
    known = TABLES[engine][kind]
    assert {field.name for field in dataclasses.fields(KINDS[kind])} <= set(known)
    assert set(known) == set(FIELDS[kind]) == {field for of, field in OTHERS if of == kind}
    assert all(said.startswith(("mapped", "rejected", "ignored")) for said in known.values())
    # The reason for ignoring or rejecting a field is given.
    assert all(": " in said for said in known.values() if not said.startswith("mapped"))


@pytest.mark.parametrize(("kind", "field"), OTHERS)
@pytest.mark.parametrize("engine", TABLES)
def test_what_the_table_says_is_what_happens(engine: str, kind: str, field: str) -> None:
    if field not in {known.name for known in dataclasses.fields(KINDS[kind])}:
        pytest.skip("this torchx does not have the field")
    key, level = (kind, field), kind.lower().removesuffix("def")
    said, value = TABLES[engine][kind][field], OTHERS[key]
    if key == ("Role", "metadata") and said.startswith("ignored"):
        value = {"other": OVERLAY}
    before = make(engine, **{level: ALSO.get(key, {})})
    after = make(engine, **{level: {**ALSO.get(key, {}), field: value}})
    if said.startswith("rejected"):
        with pytest.raises(AppDefError):
            compiled(engine, after)
    elif said.startswith("mapped"):
        assert compiled(engine, before) != compiled(engine, after)
    else:
        assert without_fewest(compiled(engine, before)) == without_fewest(compiled(engine, after))

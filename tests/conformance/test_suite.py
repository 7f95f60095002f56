"""The suite goes on where it was, and ends what cannot end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kfp import dsl

from tests.cases import Case
from tests.conformance.place import Place
from tests.conformance.suite import Suite
from tests.facts import says
from tests.fake_kfp import KfpHost
from torchx_kfp.entrypoints.doctor import proof as doctor


@dsl.container_component
def hello():
    """Says hello."""
    return dsl.ContainerSpec(image="busybox", command=["sh", "-c", "echo hello"])


@dsl.container_component
def no_image():
    """Has an image that cannot be pulled."""
    return dsl.ContainerSpec(image="registry.invalid/none:1", command=["sh"])


def small(component: Any, **more: Any) -> Case:
    def pipeline():
        component()

    return Case("small", pipeline, **more)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[KfpHost]:
    with KfpHost(tmp_path / "host", directory=tmp_path) as running:
        yield running


@pytest.fixture
def own(host: KfpHost, tmp_path: Path) -> Suite:
    """A suite of the test's own."""
    (tmp_path / "base").mkdir()
    return Suite(Place(host.url, str(tmp_path / "base"), claim="claim"), tmp_path)


def made(host: KfpHost) -> int:
    return host.count("runs$", "POST")


def test_what_has_passed_is_not_run_again_and_a_lost_run_is(own: Suite, host: KfpHost) -> None:
    assert not own.prove(small(hello)).differences
    assert not host.runs
    own.prove(small(hello))
    assert made(host) == 1
    [entry] = own.ledger.glob("*.json")
    known = json.loads(entry.read_text())
    entry.write_text(json.dumps({"digest": known["digest"], "run_id": known["run_id"]}))  # interrupted, then deleted
    assert not own.prove(small(hello)).differences
    assert made(host) == 2


def test_what_differs_stays_and_is_run_again(own: Suite, host: KfpHost) -> None:
    Path(own.base).mkdir()
    for times in (1, 2):
        assert own.prove(small(hello, results={"hello": {"loss": 1}})).differences
        assert made(host) == len(host.runs) == times
    own.close()
    assert Path(own.base).exists()


def test_what_is_expected_to_differ_is_removed(own: Suite, host: KfpHost) -> None:
    Path(own.base).mkdir()
    for _ in range(2):
        assert own.prove(small(hello, results={"hello": {"loss": 1}}, expected="it records nothing")).differences
    assert (made(host), dict(host.runs)) == (1, {})
    own.close()
    assert not Path(own.base).exists()


def test_a_run_whose_image_cannot_be_pulled_is_ended(
    own: Suite, host: KfpHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_FORBEARANCE", 0.0)
    with pytest.raises(AssertionError, match=says("no-image cannot start", "ErrImagePull", "was ended")):
        own.prove(small(no_image))
    assert host.count(":terminate$", "POST") == 1
    assert not list(own.ledger.glob("*.json"))

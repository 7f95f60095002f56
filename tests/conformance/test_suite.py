"""The suite removes what is alike, and ends what cannot end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kfp import dsl

from tests.cases import Case
from tests.conformance import suite
from tests.conformance.place import Place
from tests.conformance.suite import Suite
from tests.facts import says
from tests.fake_kfp import KfpHost


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


@pytest.mark.parametrize("expected", ["", "it records nothing"])
def test_what_is_alike_or_expected_to_differ_is_removed(expected: str, own: Suite, host: KfpHost) -> None:
    assert not own.prove(small(hello)).differences
    assert not host.runs
    assert own.prove(small(hello, results={"hello": {"loss": 1}}, expected=expected)).differences
    assert len(host.runs) == (0 if expected else 1)
    Path(own.base).mkdir(exist_ok=True)
    own.close()
    assert not Path(own.base).exists()


def test_a_run_whose_image_cannot_be_pulled_is_ended(
    own: Suite, host: KfpHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite, "_FORBEARANCE", 0.0)
    with pytest.raises(AssertionError, match=says("no-image cannot start", "ErrImagePull", "was ended")):
        own.prove(small(no_image))
    assert host.count(":terminate$", "POST") == 1

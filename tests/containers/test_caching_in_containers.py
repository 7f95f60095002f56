"""KFP's own local cache, since kfp 2.17: whose results are read, and which stages run again."""

# No annotations from __future__: KFP reads those of pipelines as objects.

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kfp.local
import pytest
from kfp import compiler, dsl
from torchx.specs import AppDef, Role

from tests.containers.images import HOST_IMAGE, REPOSITORY
from tests.containers.runner import KfpDockerRunner
from torchx_kfp import task_from_app

pytestmark = [
    pytest.mark.versions,
    pytest.mark.skipif(
        "enable_caching" not in inspect.signature(kfp.local.init).parameters, reason="this kfp has no local cache"
    ),
]

#: Records that it has run, and the results that it read.
STAGE = """
import os, sys
from torchx_kfp.tracking import current_run

run = current_run()
read = {alias: parent.results()["value"] for alias, parent in run.parents.items()}
with open(os.path.join(os.path.dirname(os.environ["TORCHX_TRACKER_BASE"]), "log"), "a") as log:
    print(sys.argv[1], sys.argv[2], os.environ.get("EXTRA", "-"), read, file=log)
run.put(value=sys.argv[2])
"""


def stage(name: str, value: str, env: dict[str, str] | None = None, image: str = HOST_IMAGE, **options: Any) -> Any:
    role = Role(name, image, entrypoint="python", args=["-c", STAGE, name, value], env=env or {})
    return task_from_app(AppDef(name, roles=[role]), results={"value": str}, **options)


@pytest.fixture
def run(kfp_docker_runner: KfpDockerRunner, tmp_path: Path) -> Callable[..., list[str]]:
    """Run the pipeline with these options of its first stage; return the stages that ran, and what they read."""

    def run_(value: str = "1", **options: Any) -> list[str]:
        @dsl.pipeline(name="cached")
        def cached(tracker_base: str):
            first = stage("first", value, tracker_base=tracker_base, **options)
            stage("second", "2", tracker_base=tracker_base, reads=first)
            stage("third", f"{first.outputs['value']}", tracker_base=tracker_base)

        compiler.Compiler().compile(cached, str(tmp_path / "cached.yaml"))
        log = tmp_path / "work" / "log"
        log.parent.mkdir(exist_ok=True)
        log.write_text("")
        kfp_docker_runner.run(
            tmp_path / "cached.yaml",
            {"tracker_base": str(tmp_path / "work" / "tracker")},
            writable=(tmp_path / "work",),
            environment={"PYTHONPATH": str(REPOSITORY)},
            cache=True,
        )
        return sorted(log.read_text().splitlines())

    return run_


EVERYTHING = ["first 1 - {}", "second 2 - {'first': '1'}", "third 1 - {}"]


def test_only_stages_run_again_that_are_changed_or_read_others(
    run: Callable[..., list[str]], kfp_docker_runner: KfpDockerRunner
) -> None:
    assert run() == EVERYTHING
    assert run() == []
    assert run("5") == ["first 5 - {}", "second 2 - {'first': '5'}", "third 5 - {}"], "a changed argument"
    assert run() == [], "the earlier results are still there"
    # A stage that reads the run reads another one; a stage that takes the value takes the same.
    assert run(env={"EXTRA": "x"}) == ["first 1 x {}", "second 2 - {'first': '1'}"], "a changed variable"
    other = f"{HOST_IMAGE.partition(':')[0]}:other"
    kfp_docker_runner.client.images.get(HOST_IMAGE).tag(other)
    try:
        assert run(image=other) == EVERYTHING[:2], "a changed image"
    finally:
        kfp_docker_runner.client.images.remove(other)
    assert run(cache=False) == run(cache=False) == EVERYTHING[:2], "its value is the same, its run is another"

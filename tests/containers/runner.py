"""Compiled pipelines under KFP's own local runner, in containers.

Do not rely on that runner's reports: it may take a container that fails within milliseconds for a success, and a
condition on a container component's output counts as false. Compare the output of stages instead.
"""

from __future__ import annotations

import inspect
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import kfp.local
from docker.models.containers import Container
from docker.types import Mount
from kfp.components import load_component_from_file
from kfp.local import config

from tests.containers.images import host_mounts


@dataclass(frozen=True)
class KfpDockerRunner:
    """Runs compiled pipelines in containers, which do not have a network.

    ``pipeline_root`` is the folder in which KFP keeps outputs. It is the only folder of this machine that containers
    can write to, besides those that ``run`` is given.
    """

    client: docker.DockerClient
    pipeline_root: Path

    def run(
        self,
        pipeline: Path,
        arguments: Mapping[str, Any] | None = None,
        *,
        writable: tuple[Path, ...] = (),
        images: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Run a pipeline and return its outputs.

        Args:
            pipeline: the compiled YAML.
            arguments: the pipeline's arguments, by name.
            writable: folders of this machine, such as a tracker base, at their own paths in containers.
            images: the images to use here, by the names of images in the pipeline.
            environment: environment variables for all containers.

        Raises:
            RuntimeError: KFP's runner noticed that a stage failed.
        """
        run_label = uuid.uuid4().hex
        mounts = [Mount(target, source, type="bind", read_only=True) for source, target in host_mounts().items()]
        mounts += [Mount(str(path), str(path), type="bind") for path in writable]
        runner = kfp.local.DockerRunner(
            mounts=mounts,
            network_mode="none",
            environment=dict(environment or {}),
            labels={"torchx-kfp-test": run_label},
        )
        component = load_component_from_file(str(pipeline))
        with (
            self._named(images or {}),
            self._without_leftovers(run_label),
            self._executing_locally(runner),
            _removed_containers_are_gone(),
            warnings.catch_warnings(),
        ):
            # Since 2.17, kfp warns that resources are not applied.
            warnings.filterwarnings("ignore", ".*have no effect in the current local runner", UserWarning)
            return dict(component(**(arguments or {})).outputs)

    @contextmanager
    def _named(self, images: Mapping[str, str]) -> Iterator[None]:
        for name, image in images.items():
            self.client.images.get(image).tag(name)
        try:
            yield
        finally:
            for name in images:
                self.client.images.remove(name)

    @contextmanager
    def _without_leftovers(self, run_label: str) -> Iterator[None]:
        # KFP 2.14 keeps its containers; later versions remove them.
        try:
            yield
        finally:
            for container in self.client.api.containers(all=True, filters={"label": f"torchx-kfp-test={run_label}"}):
                try:
                    self.client.api.remove_container(container["Id"], force=True)
                except docker.errors.APIError as error:
                    # 404, 409: the engine has removed it meanwhile, or is about to.
                    if error.status_code not in (404, 409):
                        raise

    @contextmanager
    def _executing_locally(self, runner: kfp.local.DockerRunner) -> Iterator[None]:
        # While this is set, calling any component in this process runs it.
        before = config.LocalExecutionConfig.instance
        options: dict[str, Any] = {"pipeline_root": str(self.pipeline_root)}
        if "workspace_root" in inspect.signature(kfp.local.init).parameters:
            # Otherwise, KFP creates a folder in the machine's temporary folder, and leaves it there.
            options["workspace_root"] = str(self.pipeline_root / "workspace")
            (self.pipeline_root / "workspace").mkdir(exist_ok=True)
        kfp.local.init(runner=runner, **options)
        try:
            yield
        finally:
            config.LocalExecutionConfig.instance = before


@contextmanager
def _removed_containers_are_gone() -> Iterator[None]:
    """Treat a container that is being removed (409) like one that is gone (404), which KFP expects if it was quick."""

    def tolerant(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            try:
                return method(*args, **options)
            except docker.errors.APIError as error:
                if error.status_code != 409:
                    raise
                raise docker.errors.NotFound(str(error), error.response) from error

        return call

    before = Container.logs, Container.wait
    Container.logs, Container.wait = map(tolerant, before)
    try:
        yield
    finally:
        Container.logs, Container.wait = before

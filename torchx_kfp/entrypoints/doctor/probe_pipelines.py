"""The pipelines that ``torchx-kfp doctor --run`` submits: three tiny stages, one to cancel, and one of two replicas."""

# Annotations are not postponed: kfp reads them as types.

from pathlib import Path
from typing import Any

from torchx.specs import AppDef, Role

from torchx_kfp.authoring.one_stage import pipeline_of
from torchx_kfp.authoring.stages import task_from_app
from torchx_kfp.common.sdk import import_kfp, quick_sdk
from torchx_kfp.entrypoints.doctor import probe_program
from torchx_kfp.entrypoints.doctor.pod_options import PodOptions
from torchx_kfp.execution.pipeline.load import compile_function
from torchx_kfp.execution.pipeline.spec import Pipeline

#: The smallest of Docker's official images that has python3; it lacks fsspec.
DEFAULT_IMAGE = "python:3.12-alpine"
#: The names of the three stages.
FIRST, SECOND, RETRIED = "first", "second", "retried"
#: The packages with the drivers of storage, by the schemes of tracker bases.
_DRIVERS = {
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "abfs": "adlfs",
    "abfss": "adlfs",
    "az": "adlfs",
}
_NAME = "torchx-kfp-doctor"


def _role(pod: PodOptions, name: str, *args: str, replicas: int = 1) -> Role:
    """Return a role that runs the program."""
    source = Path(probe_program.__file__).read_text(encoding="utf-8")
    image, env = pod.image or DEFAULT_IMAGE, dict(pod.env)
    return Role(name, image=image, entrypoint="python3", args=["-c", source, *args], env=env, num_replicas=replicas)


def probe_pipeline(pod: PodOptions, base: str) -> Pipeline:
    """Return the pipeline of three stages, with the parameters ``tracker_base`` and ``token``.

    Args:
        pod: the options of pods.
        base: the tracker base, whose driver the stages need.
    """
    import_kfp()
    from kfp import dsl, kubernetes

    driver = _DRIVERS.get(base.partition("://")[0].lower())
    packages = f"fsspec,{driver}" if driver else "fsspec"
    install = "" if pod.image else "install"

    def probe(tracker_base: str, token: str) -> None:
        def stage(name: str, **reads: Any) -> Any:
            app = AppDef(name, [_role(pod, name, name, f"{token}", packages, install)])
            task = task_from_app(app, tracker_base=tracker_base, secrets=pod.secrets or None, **reads)
            if pod.volume:
                kubernetes.mount_pvc(task, pod.volume, base)
            return task

        first = stage(FIRST)
        # Last: a cluster that does not retry it ends the run.
        stage(RETRIED).after(stage(SECOND, reads=first)).set_retry(1)

    with quick_sdk():
        return compile_function(dsl.pipeline(name=_NAME)(probe), _NAME)


def sleeping_pipeline(pod: PodOptions) -> Pipeline:
    """Return a pipeline whose one stage sleeps for ten minutes."""
    role = Role("sleep", image=pod.image or DEFAULT_IMAGE, entrypoint="sleep", args=["600"])
    return compile_function(pipeline_of(AppDef("doctor-sleep", [role]), tracked=False), _NAME)


def meeting_pipeline(pod: PodOptions, engine: str, token: str, port: int) -> Pipeline:
    """Return a pipeline whose one stage has two replicas that meet at a port of the first.

    Args:
        pod: the options of pods.
        engine: the engine.
        token: what one replica sends to the other.
        port: the port.
    """
    app = AppDef("doctor-meet", [_role(pod, "worker", "meet", token, str(port), replicas=2)])
    return compile_function(pipeline_of(app, tracked=False, engine=engine), _NAME)

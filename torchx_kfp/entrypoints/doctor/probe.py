"""The pipeline that ``torchx-kfp doctor --run`` submits: a stage records a result, and another one reads it."""

# Annotations are not postponed: kfp reads them as types.

from typing import Any

from kfp import dsl, kubernetes
from torchx.specs import AppDef, Role

from torchx_kfp.authoring.engines import ENGINES
from torchx_kfp.authoring.stages import task_from_app

#: Where the store of KFP 2.17 has its credentials, and the variables that they become.
_SECRET = "mlpipeline-minio-artifact"
_KEYS = {"accesskey": "AWS_ACCESS_KEY_ID", "secretkey": "AWS_SECRET_ACCESS_KEY"}
_RECORD = """
import sys
from torchx_kfp.tracking import current_run
run = current_run()
run.put(number=run.parent.results()["number"] + 1 if sys.argv[1] == "second" else 1)
"""
_MEET = "import os; print('replica', os.environ['TORCHX_REPLICA_ID'], 'has started')"


def probe(tracker_base: str, image: str, endpoint: str = "", secret: str = _SECRET, engine: str = "") -> None:
    """Record a result in one stage, and read it in another one.

    Args:
        tracker_base: where the stages record their results.
        image: the image of the stages, with torchx-kfp and the driver of the storage.
        endpoint: the address of an S3 store in the cluster, such as http://seaweedfs.kubeflow:9000.
        secret: the secret with accesskey and secretkey of an S3 store, if there is one.
        engine: the engine that starts two replicas: job, jobset or volcano. By default, none does.
    """

    def app(name: str, *args: str, replicas: int = 1) -> AppDef:
        role = Role(name, image=f"{image}", entrypoint="python3", args=["-c", *args], num_replicas=replicas)
        role.env = {"AWS_ENDPOINT_URL": f"{endpoint}"}
        return AppDef(name, [role])

    reads: dict[str, Any] = {}
    for name in ("first", "second"):
        stage = task_from_app(app(name, _RECORD, name), tracker_base=tracker_base, **reads)
        kubernetes.use_secret_as_env(stage, secret, _KEYS, optional=True)
        reads = {"reads": stage}
    for name in ENGINES:
        with dsl.If(engine == name):
            task_from_app(app(f"replicas-{name}", _MEET, replicas=2), engine=name)


pipeline = dsl.pipeline(name="torchx-kfp-doctor")(probe)

"""A training in two replicas, and a stage that reads its loss.

The replicas are two pods of a Kubernetes Job, which need nothing installed on the cluster. They meet through PyTorch's
rendezvous, as TorchX's ``dist.ddp`` sets it up, and average their gradients. Locally, they are two processes::

    torchx-kfp run pipelines/ddp.py --tracker-base ddp-results/tracker -p epochs=10

The training needs the extra ``ddp``. It saves a checkpoint after each epoch, and continues from it if Argo starts the
stage again. ``checkpoints`` is the folder, a local one or an fsspec URL; another run with it continues as well.
By default, each run has a folder next to the tracker base.
"""

from kfp import dsl

from components.ddp import component as apps
from torchx_kfp import Stages


@dsl.pipeline(name="ddp", description="A training in two replicas, whose loss the next stage reads")
def ddp(tracker_base: str, epochs: int = 20, bound: float = 0.2, checkpoints: str = "", workspace: str = ""):
    stages = Stages(tracker_base=tracker_base, workspace=workspace)
    app = apps.train(epochs, checkpoints=checkpoints)
    trained = stages.task(app, results={"loss": float, "accuracy": float}, engine="job")
    stages.task(apps.report(bound), reads=trained)

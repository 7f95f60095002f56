"""TorchX component functions as KFP components: two that come with TorchX, and one of this repository.

``utils.booth`` evaluates Booth's function, which is 0 at (1, 3), and records that under the tracker base itself::

    torchx-kfp run pipelines/functions.py --tracker-base /tmp/functions

The same component function serves ``torchx run`` and pipelines, where its parameters are inputs. The applications in
``components/`` need the extra ``examples``.
"""

from kfp import dsl
from torchx.components import utils

from components.digits import component as apps
from torchx_kfp import component_from_function

booth = component_from_function(utils.booth, image=apps.IMAGE)
prepare = component_from_function(apps.prepare, results={"train_size": int})
# A parameter whose value the function needs is a constant.
echo = component_from_function(utils.echo, image="busybox:1.36", num_replicas=1)


@dsl.pipeline(name="functions", description="TorchX component functions as KFP components")
def functions(tracker_base: str, x1: float = 1.0, x2: float = 3.0, seed: int = 0):
    booth(x1=x1, x2=x2, trial_idx=7, tracker_base=f"{tracker_base}/booth")
    prepared = prepare(tracker_base=tracker_base, seed=seed)
    echo(msg=f"{prepared.outputs['train_size']} images")

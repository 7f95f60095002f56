"""A stage whose image, CPUs, memory and accelerators are decided by another stage while the pipeline runs.

The resources of a KFP task may be outputs of another task, as text in Kubernetes' notation. AppDefs cannot express
this, so the pipeline sets them on the task::

    torchx-kfp run pipelines/sized.py --tracker-base /tmp/sized -p rows=1000000

An accelerator's count must have the type str: KFP silently drops counts of other types.
"""

from kfp import dsl
from torchx.specs import AppDef, Role

from components.sizing.size import size
from torchx_kfp import Stages

#: An image that has torchx-kfp, and this repository as its working directory.
IMAGE = "torchx-kfp-examples:1"


@dsl.pipeline(name="sized", description="A stage of the size that another one decides")
def sized(tracker_base: str, rows: int = 1000, columns: int = 64, image: str = IMAGE, workspace: str = ""):
    stages = Stages(tracker_base=tracker_base, workspace=workspace)
    decided = stages.python(size, image=image, rows=rows, columns=columns, training=image)
    code = "import sys; print('Training with', *sys.argv[1:])"
    chosen, memory = decided.outputs["image"], decided.outputs["memory"]
    role = Role("fit", image=f"{chosen}", entrypoint="python", args=["-c", code, f"{memory}"])
    fit = stages.task(AppDef("fit", roles=[role]), reads=decided)
    fit.set_memory_limit(memory).set_cpu_limit(decided.outputs["cpu"])
    fit.set_accelerator_type("nvidia.com/gpu").set_accelerator_limit(decided.outputs["gpus"])

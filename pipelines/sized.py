"""A stage whose image, CPUs, memory and accelerators another stage decides while the pipeline runs.

What a KFP task is given may be an output of another one, as text in the words of Kubernetes: an AppDef has no word for
that, so it is set on the task::

    torchx-kfp run pipelines/sized.py --tracker-base /tmp/sized -p rows=1000000

An accelerator's count has to be of the type str: KFP leaves out one of another type without a word.
"""

from kfp import dsl
from torchx.specs import AppDef, Role

from components.sizing.component import size
from torchx_kfp import Stages


@dsl.pipeline(name="sized", description="A stage of the size that another one decides")
def sized(tracker_base: str, rows: int = 1000, columns: int = 64):
    stages = Stages(tracker_base=tracker_base)
    decided = stages.task(size(rows, columns), results={"memory": str, "cpu": str, "gpus": str, "image": str})
    code = "import sys; print('Training with', *sys.argv[1:])"
    image, memory = decided.outputs["image"], decided.outputs["memory"]
    role = Role("fit", image=f"{image}", entrypoint="python", args=["-c", code, f"{memory}"])
    fit = stages.task(AppDef("fit", roles=[role]), reads=decided)
    fit.set_memory_limit(memory).set_cpu_limit(decided.outputs["cpu"])
    fit.set_accelerator_type("nvidia.com/gpu").set_accelerator_limit(decided.outputs["gpus"])

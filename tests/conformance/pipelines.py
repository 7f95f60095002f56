"""Pipelines that the suite needs besides the cases."""

# Annotations are not postponed: kfp reads them as types.
from kfp import dsl

from tests.cases import Case
from tests.cases.apps import python
from tests.cases.results import REPLICA
from torchx_kfp import Stages

#: What cases need, and an image may lack.
PACKAGES = ("sklearn", "torch", "torchx", "torchx_kfp")

#: Records which of these packages the image has. Those of the workspace, which is the folder of the stage, are not its.
FIND = """
import os, sys
from importlib.machinery import PathFinder
from torchx_kfp.tracking import current_run
path = [folder for folder in sys.path if os.path.realpath(folder) != os.getcwd()]
current_run().put(packages=" ".join(name for name in sys.argv[1:] if PathFinder.find_spec(name, path)))
"""


@dsl.pipeline(name="packages")
def packages(tracker_base: str, workspace: str = ""):
    Stages(tracker_base=tracker_base, workspace=workspace).task(python("packages", FIND, *PACKAGES))


def replicas(engine: str) -> Case:
    """Return a case with a stage of two replicas."""

    def distributed(tracker_base: str, workspace: str = ""):
        stages = Stages(tracker_base=tracker_base, workspace=workspace)
        stages.task(python("replica", REPLICA, num_replicas=2), engine=engine, results={"replicas": int})

    return Case(f"replicas.{engine}", distributed, results={"replica": {"replicas": 2}})


@dsl.container_component
def asleep():
    """Sleeps until it is ended."""
    return dsl.ContainerSpec(image="busybox", command=["sh", "-c", "echo asleep; sleep 600"])


@dsl.pipeline(name="sleeping")
def sleeping():
    asleep().set_caching_options(False)


FIRST = "from torchx_kfp.tracking import current_run; current_run().put(number=0.25)"
#: Fails until somebody has written a file under the tracker base.
MENDED = """
import os, sys
import fsspec
from torchx_kfp.tracking import current_run
filesystem, path = fsspec.core.url_to_fs(f"{os.environ['TORCHX_TRACKER_BASE']}/{sys.argv[1]}")
if not filesystem.exists(path):
    sys.exit(4)
current_run().put(mended=1)
"""


@dsl.pipeline(name="mended")
def mended(tracker_base: str, marker: str, workspace: str = ""):
    stages = Stages(tracker_base=tracker_base, workspace=workspace)
    first = stages.task(python("first", FIRST), results={"number": float})
    stages.task(python("mended", MENDED, marker), reads=first)

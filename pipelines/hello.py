"""Two stages in an image without Python: the second prints the results of the first.

The tracker base is a local directory, because shell scripts cannot use other storage::

    torchx-kfp run pipelines/hello.py --tracker-base /tmp/hello

A third stage, in an image with Python, publishes the results of the first one, so that KFP shows them
(components/publisher).
"""

from kfp import dsl

from components.echo.component import echo
from torchx_kfp import Stages


@dsl.pipeline(name="hello", description="Two stages that pass a result in a shell script")
def hello(tracker_base: str, message: str = "Hello, pipelines!"):
    stages = Stages(tracker_base=tracker_base)
    first = stages.task(echo(message), name="first")
    stages.publish(first, {"bytes": int}, image="torchx-kfp-publisher:1")
    stages.task(echo("So much the first stage said."), name="second", reads=first)

"""Two stages in an image without Python: the second one prints what the first one recorded.

The tracker base is a local directory: a shell script reads and writes no other one::

    torchx-kfp run pipelines/hello.py --tracker-base /tmp/hello

A third stage, in an image with Python, publishes what the first one recorded, so that KFP shows it (images/publisher).
"""

from functools import partial

from kfp import dsl

from components.echo.component import echo
from torchx_kfp import publish_results, task_from_app


@dsl.pipeline(name="hello", description="Two stages that pass a result in a shell script")
def hello(tracker_base: str, message: str = "Hello, pipelines!"):
    stage = partial(task_from_app, tracker_base=tracker_base)
    first = stage(echo(message), name="first")
    publish_results(first, {"bytes": int}, image="torchx-kfp-publisher:1")
    stage(echo("So much the first stage said."), name="second", reads=first)

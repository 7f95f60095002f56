"""Record and read the results of stages. Applications import this part of the package.

    from torchx_kfp.tracking import current_run

    run = current_run()
    accuracy = run.parent.results()["accuracy"]
    run.put(improved=accuracy > 0.9)

It needs only the standard library and fsspec: the application's image needs neither kfp nor torchx.
"""

from __future__ import annotations

from torchx_kfp.tracking.artifacts import Artifact
from torchx_kfp.tracking.curves import Curve, History, Point
from torchx_kfp.tracking.lineage import Lineage, Link
from torchx_kfp.tracking.records import Source
from torchx_kfp.tracking.results import Result
from torchx_kfp.tracking.run import FanIn, Run, current_run, open_run
from torchx_kfp.tracking.store import Key
from torchx_kfp.tracking.tracker import FsspecResultTracker, open_tracker

__all__ = [
    "Artifact",
    "Curve",
    "FanIn",
    "FsspecResultTracker",
    "History",
    "Key",
    "Lineage",
    "Link",
    "Point",
    "Result",
    "Run",
    "Source",
    "current_run",
    "open_run",
    "open_tracker",
]

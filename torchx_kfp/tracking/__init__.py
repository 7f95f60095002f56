"""What applications import: results of a stage, recorded and read through a tracker.

    from torchx_kfp.tracking import current_run

    run = current_run()
    accuracy = run.parent.results()["accuracy"]
    run.put(improved=accuracy > 0.9)

Needs the standard library and fsspec; neither kfp nor torchx has to be in the application's image.
"""

from __future__ import annotations

from torchx_kfp.tracking.lineage import Lineage, Link
from torchx_kfp.tracking.results import Result
from torchx_kfp.tracking.run import FanIn, Parents, Run, current_run
from torchx_kfp.tracking.statements.artifacts import Artifact
from torchx_kfp.tracking.statements.sources import Source
from torchx_kfp.tracking.statements.steps import Curve, History, Point
from torchx_kfp.tracking.stores.keys import Key
from torchx_kfp.tracking.tracker import FsspecResultTracker, ResultTracker

__all__ = [
    "Artifact",
    "Curve",
    "FanIn",
    "FsspecResultTracker",
    "History",
    "Key",
    "Lineage",
    "Link",
    "Parents",
    "Point",
    "Result",
    "ResultTracker",
    "Run",
    "Source",
    "current_run",
]

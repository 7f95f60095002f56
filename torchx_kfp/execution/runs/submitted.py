"""What submissions record of their stages under the tracker base, and what a new one would run compared with them.

KFP does not say what its cache has. A submission records the parts of KFP's key of each stage (``GenerateCacheKey`` in
``cacheutils/cache.go``), as far as they are known before the run, and the files of its code.
"""

from __future__ import annotations

from collections.abc import Iterator

from torchx_kfp.contract.protocol import TRACKER_BASE_PARAMETER
from torchx_kfp.execution.pipeline.spec import FromTask
from torchx_kfp.execution.pipeline.walk import ScopedTask, known_stages
from torchx_kfp.execution.runs.prepared_run import PreparedRun
from torchx_kfp.tracking.recorder import SHORT_PATIENCE, Recorder


def forecast_submission(prepared: PreparedRun, *, cache: bool) -> list[tuple[str, str]]:
    """Return what would become of each stage on a host, by the stages' names, in an order in which they could run.

    Args:
        prepared: the run.
        cache: whether it may use KFP's cache.

    Raises:
        TrackerError: what earlier submissions recorded cannot be read.
    """
    base = prepared.values.get(TRACKER_BASE_PARAMETER)
    recorder = Recorder(base, patience=SHORT_PATIENCE) if isinstance(base, str) and base else None
    earlier = [] if recorder is None else recorder.submitted(prepared.pipeline.name)
    recorded: dict[str, set[str]] = {}
    found: list[tuple[str, str]] = []
    runs: dict[str, str] = {}
    for stage in known_stages(prepared.pipeline, prepared.values):
        reads = next((name for path, name in runs.items() if _reads(stage, path)), "")
        last = next((each for each in earlier if stage.name in each.stages), None)
        what = ""
        if not cache:
            what = "--no-cache"
        elif stage.name in prepared.fresh:
            what = "--fresh"
        elif stage.task.runs_always or not stage.task.caches:
            what = "it is an exit task" if stage.task.runs_always else "its cache is turned off"
        elif reads:
            what = f"it reads {reads}"
        elif last is None:
            what = "it has not been submitted yet"
        else:
            what = ", ".join(prepared.keys[stage.name].differences(last.parts(stage.name), last.files(stage.name)))
        if not what and last is not None and recorder is not None:
            if last.run_id not in recorded:
                recorded[last.run_id] = {key.split("/")[1] for key in recorder.keys(last.run_id) if "/" in key}
            is_known = stage.decoded.stage in recorded[last.run_id]
            found.append((stage.name, f"cached (from {last.run_id}{'' if is_known else ', if it succeeded there'})"))
        else:
            runs[stage.path] = stage.name
            found.append((stage.name, f"runs: {what}"))
    return found


def _reads(stage: ScopedTask, path: str) -> bool:
    """Tell whether a stage, or what is around it, takes an output of the stage with this path, or of one around it."""
    return any(path == it or path.startswith(f"{it}/") for it in _sources(stage))


def _sources(stage: ScopedTask) -> Iterator[str]:
    for around in stage.around:
        for source in (*around.task.inputs.values(), *around.task.artifacts.values()):
            if isinstance(source, FromTask):
                yield source.task if around.inside is None else f"{around.inside.path}/{source.task}"

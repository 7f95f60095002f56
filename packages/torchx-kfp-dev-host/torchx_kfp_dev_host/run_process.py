"""The process that runs one submitted pipeline as a local run: ``python -m torchx_kfp_dev_host.run_process REQUEST``.

It reads a request, as JSON, from the file that is its argument. The run has the id that the host gave it, and its pods
have Argo's names. A run that is retried runs again in its folder, without the stages that have succeeded.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from torchx_kfp import local
from torchx_kfp.errors import TorchxKfpError
from torchx_kfp.execution.local import runner
from torchx_kfp.execution.pipeline.walk import walk_tasks, without_indices
from torchx_kfp.execution.runs.history import is_run, read_run
from torchx_kfp.execution.runs.prepared_run import prepare
from torchx_kfp_dev_host.argo import ArgoPods, Naming


class _Watch(local.Watch):
    def on_warning(self, message: str) -> None:
        print(message, file=sys.stderr)


def _done(folder: Path, pipeline: local.Pipeline) -> dict[str, local.StageResult]:
    """Return the results of stages that a retry keeps."""
    anew = {place.name for place in walk_tasks(pipeline) if place.task.ignores_failures}
    ends = read_run(folder).run.ends
    return {end.name: end for end in ends if end.state.is_success and without_indices(end.name) not in anew}


def main() -> None:
    """Run the pipeline of a request."""
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    options, output_dir, run_id = request["options"], request["folder"], request["run_id"]
    try:
        pipeline = local.load_pipeline(request["pipeline"])
        prepared = prepare(pipeline, request["arguments"], directory=options["directory"], without=[output_dir])
        folder = Path(output_dir, run_id)
        done = _done(folder, prepared.pipeline) if is_run(folder) else {}
        pods = ArgoPods(prepared.pipeline, Naming(request["workflow"]))
        result = runner.start(
            prepared, output_dir=output_dir, watch=_Watch(), run_id=run_id, pod_names=pods, done=done, **options
        )
    except TorchxKfpError as error:
        sys.exit(str(error))
    sys.exit(0 if str(result.state) == "succeeded" else 1)


if __name__ == "__main__":
    main()

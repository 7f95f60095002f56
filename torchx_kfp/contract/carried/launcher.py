"""Runs the replicas of a distributed stage: as an object of the cluster's engine, or as processes on this machine.

In the command of such a stage, this program takes the place of the application::

    python3 -c PROGRAM SPEC {{$}} WORD...

SPEC is JSON, a ``contract.specification``: the manifest of the engine's object, where its state is found, and the
roles. The program knows no engine. Text that is known only at run time, and all arguments of the applications, are
WORDs; SPEC refers to them by number. ``{{$}}`` is KFP's ExecutorInput, which has the settings of the task
(``dsl.TaskConfig``) and names the file for the run id.
"""

from __future__ import annotations

import json
import os
import re
import sys

from torchx_kfp.contract.carried.cluster_api import account_file
from torchx_kfp.contract.carried.cluster_stage import ClusterStage
from torchx_kfp.contract.carried.replica_processes import run_here
from torchx_kfp.contract.carried.replica_roles import Failure, begin_again, count, exit_now, outputs_of, say


def main(spec_text: str, executor_input: str, /, *words: str) -> None:
    """Run the stage's replicas, and exit with the stage's exit code."""
    spec = json.loads(spec_text)
    try:
        counts = [count(role, words) for role in spec["roles"]]
        node = os.environ.get("KFP_ARGO_NODE")
        given = json.loads(executor_input)
        outputs = outputs_of(given)
        if node is None:
            if os.path.exists(account_file("token")) and "TORCHX_KFP_LOCAL_RUN" not in os.environ:
                raise Failure(
                    "this pod lacks the variable KFP_ARGO_NODE: the pipeline's settings for Kubernetes are lost"
                )
            exit_now(run_here(spec, words, counts, outputs))
        if not node:
            raise Failure("the pod lacks the annotation workflows.argoproj.io/node-name, from which its name is made")
        attempt, first = 1, os.environ.get("TORCHX_JOB_ID", "")
        while True:
            try:
                stage = ClusterStage(spec, words, counts, given, f"/{attempt}" * (attempt > 1))
            except (OSError, KeyError) as error:
                raise Failure(f"the pod has no access to the cluster's API: {error!r}") from None
            code = stage.run()
            # It may have adopted a later attempt.
            adopted = re.search(r"_[^_/]*_(\d{1,7})$", stage.run_id)
            attempt = 1 + max(attempt, int(adopted[1]) if adopted else 1)
            if not code or attempt > spec.get("retries", 0) + 1:
                exit_now(code)
            begin_again(spec, attempt, code, outputs, first)
    except Failure as failure:
        say(failure)
        exit_now(spec.get("failure", 1))


if __name__ == "__main__":
    main(*sys.argv[1:])

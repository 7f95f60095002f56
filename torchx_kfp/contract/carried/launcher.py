"""Runs the replicas of a distributed stage: as an object of the cluster's engine, or as processes on this machine.

In the command of such a stage, this program takes the place of the application::

    python3 -c PROGRAM SPEC {{$}} WORD...

SPEC is a ``contract.specification`` as JSON: the manifest of the engine's object, the location of its state, and the
roles. The program knows no engine. Text that is known only at run time, and all arguments of the applications, are
WORDs; SPEC refers to them by number. ``{{$}}`` is KFP's ExecutorInput, which has the settings of the task
(``dsl.TaskConfig``) and names the file for the execution id.

If the replicas fail, this program makes another attempt, up to ``retries`` times, with its own execution id, so
records of failed attempts are not read. Failures of this program itself are not retried here.
"""

from __future__ import annotations

import json
import os
import re
import sys

from torchx_kfp.contract.carried.cluster_api import FOLDER
from torchx_kfp.contract.carried.cluster_stage import ClusterStage
from torchx_kfp.contract.carried.replica_processes import run_here
from torchx_kfp.contract.carried.replica_roles import Failure, count, say, use_run_id


def main(spec_text: str, executor_input: str, /, *words: str) -> None:
    """Run the stage's replicas, and exit with its exit code without joining threads, which may wait for logs."""
    spec = json.loads(spec_text)
    try:
        counts = [count(role, words) for role in spec["roles"]]
        given = json.loads(executor_input)
        node = os.environ.get("KFP_ARGO_NODE")
        if node is None and os.path.exists(f"{FOLDER}/token") and "TORCHX_KFP_LOCAL_RUN" not in os.environ:
            raise Failure("this pod lacks the variable KFP_ARGO_NODE: the pipeline's settings for Kubernetes are lost")
        if node == "":
            raise Failure("the pod lacks the annotation workflows.argoproj.io/node-name, from which its name is made")
        first, attempt = os.environ.get("TORCHX_JOB_ID", ""), 1
        most = 1 + spec["retries"]
        while True:
            code = ClusterStage(spec, words, counts, given, attempt).run() if node else run_here(spec, words, counts)
            # It may have adopted a later attempt.
            adopted = re.search(r"_[^_/]*_(\d{1,7})$", os.environ.get("TORCHX_JOB_ID", "") if node else "")
            attempt = 1 + max(attempt, int(adopted[1]) if adopted else 1)
            if not code or attempt > most:
                os._exit(code)
            say(f"attempt {attempt} of {most}: the application ended with exit code {code}")
            use_run_id(given, f"{first}_{attempt}")
    except Failure as failure:
        say(failure)
        os._exit(spec.get("failure", 1))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Decides whether the model of select, the first stage that it reads, is deployed. It only writes a record of that.

It does not need torchx-kfp: TorchX's own tracker finds the results through the environment.
"""

from __future__ import annotations

import argparse
import os

from torchx.runtime.tracking import FsspecResultTracker


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threshold", type=float, required=True, help="the lowest accuracy that is good enough")
    args = parser.parse_args()

    tracker = FsspecResultTracker(os.environ["TORCHX_TRACKER_BASE"])
    selected = tracker[os.environ["TORCHX_PARENT_RUN_ID"]]
    deployed = selected["accuracy"] >= args.threshold

    tracker[os.environ["TORCHX_JOB_ID"]] = {
        "deployed": deployed,
        "accuracy": selected["accuracy"],
        "threshold": args.threshold,
        "model": selected["model"],
    }
    print(f"{'Deployed' if deployed else 'Not deployed'}: {selected['accuracy']:.4f}, threshold {args.threshold}")


if __name__ == "__main__":
    main()

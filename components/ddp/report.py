"""Reports the loss of the training that it reads, and fails if the loss is not below a bound."""

from __future__ import annotations

import argparse
import sys

from torchx_kfp.tracking import current_run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bound", type=float, required=True, help="the loss must be below it")
    args = parser.parse_args()
    run = current_run()

    trained = run.parent.results()
    loss = trained["loss"]
    if not loss < args.bound:  # NaN is not below it either
        sys.exit(f"The loss of {run.parent.id} is {loss}, which is not below {args.bound}.")
    run.put(loss=loss, bound=args.bound)
    print(
        f"Loss {loss:.4f}, accuracy {trained['accuracy']:.4f} "
        f"after {trained['epochs']} epochs in {trained['world_size']} processes"
    )


if __name__ == "__main__":
    main()

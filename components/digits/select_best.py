"""Names the best of the trials that it reads: a fan-in, which is a list of runs.

Records the run id of the best trial, its accuracy, and where its model is.
"""

from __future__ import annotations

from torchx_kfp.tracking import current_run


def main() -> None:
    run = current_run()
    trials = [(trial.id, trial.results()) for trial in run.parents["train"]]
    best_id, best = max(trials, key=lambda trial: trial[1]["accuracy"])

    run.put(best=best_id, accuracy=best["accuracy"], model=best["model"], trials=len(trials))
    print(f"The best of {len(trials)} trials is {best_id}: accuracy {best['accuracy']:.4f}")


if __name__ == "__main__":
    main()

"""Searches for a network that is accurate and small: Ax chooses, TorchX runs, the tracker has the outcomes.

    python -m components.nas.search --tracker-base nas-results --trials 12

It is Ax's tutorial of an architecture search with TorchX, on data that scikit-learn has. The experiment is saved after
each batch of trials; the same command goes on with it, after an interruption or with more trials.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from ax.api.client import Client
from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig

from components.nas import component
from torchx_kfp.hpo.ax import TorchXMetric, TorchXRunner

PARAMETERS = [
    RangeParameterConfig("hidden_1", (8, 256), "int", scaling="log"),
    RangeParameterConfig("hidden_2", (8, 128), "int", scaling="log"),
    RangeParameterConfig("learning_rate", (1e-4, 1e-1), "float", scaling="log"),
    RangeParameterConfig("decay", (1e-6, 1e-1), "float", scaling="log"),
    ChoiceParameterConfig("batch_size", [16, 32, 64, 128], "int", is_ordered=True),
]


def new_client(seed: int, method: str) -> Client:
    """Return a client with an experiment of two objectives. Networks beyond the thresholds are of no use."""
    client = Client(random_seed=seed)
    client.configure_experiment(PARAMETERS, name="nas")
    client.configure_optimization("val_acc, -num_params", ["val_acc >= 0.9", "num_params <= 20000"])
    client.configure_generation_strategy(method, initialization_random_seed=seed)
    return client


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tracker-base", required=True, help="where the trials record their results")
    parser.add_argument("--scheduler", default="local_cwd", help="a scheduler of TorchX")
    parser.add_argument("--saved", type=Path, default=Path("nas.json"), help="the file of the experiment")
    parser.add_argument("--trials", type=int, default=12, help="how many trials the experiment is to have")
    parser.add_argument("--parallelism", type=int, default=2, help="how many of them run at once")
    parser.add_argument("--method", default="fast", help="how Ax chooses: fast, quality or random_search")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(words)

    client = Client.load_from_json_file(str(args.saved)) if args.saved.exists() else new_client(args.seed, args.method)
    client.configure_runner(
        TorchXRunner(
            component.train,
            tracker_base=args.tracker_base,
            scheduler=args.scheduler,
            constants={"epochs": 8, "budget": 20_000},
        )
    )
    client.configure_metrics([TorchXMetric("val_acc"), TorchXMetric("num_params")])
    while (done := len(client.summarize())) < args.trials:
        batch = min(args.parallelism, args.trials - done)
        client.run_trials(max_trials=batch, parallelism=batch, tolerated_trial_failure_rate=0.9)
        client.save_to_json_file(str(args.saved))

    rows = client.summarize()
    print(f"{len(rows)} trials, of which {sum(rows['trial_status'] == 'FAILED')} failed. None is better than these:")
    for parameters, outcome, index, _ in client.get_pareto_frontier(use_model_predictions=False):
        accuracy, weights = _mean(outcome["val_acc"]), _mean(outcome["num_params"])
        chosen = ", ".join(f"{name}={value:.4g}" for name, value in parameters.items())
        print(f"trial {index}: accuracy {accuracy:.4f}, {weights:,.0f} weights ({chosen})")


def _mean(outcome: float | tuple[float, float]) -> float:
    return outcome[0] if isinstance(outcome, tuple) else outcome


if __name__ == "__main__":
    main()

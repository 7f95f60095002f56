"""Runs the cases that the command names, or all."""

import argparse
import importlib
import subprocess
import sys
import warnings

from dev import benchmarks

CASES = {
    "start": "what a stage's command adds to the start of its application, and the import of current_run",
    "tracker": "put and get beside TorchX's tracker; requests on S3; an artifact of 1 GB beside fsspec's copies",
    "size": "how many stages fit into a run on KFP, by the model",
    "local": "the local runner beside kfp.local; a loop's memory; a run from the cache",
    "load": "processes that put, get and are killed: is anything lost or mixed?",
}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m dev.benchmarks",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n".join(f"  {name:10}{what}" for name, what in CASES.items()),
    )
    parser.add_argument("case", nargs="*", help="one of those below; default: all")
    names = parser.parse_args().case or list(CASES)
    if unknown := [name for name in names if name not in CASES]:
        parser.error(f"there is no case {unknown[0]!r}: {', '.join(CASES)}")
    if len(names) > 1:
        # In processes of their own: the modules that one loads would be memory of another.
        sys.exit(max(subprocess.run([sys.executable, "-m", "dev.benchmarks", name]).returncode for name in names))
    warnings.simplefilter("ignore")
    print(f"== {names[0]}: {CASES[names[0]]}", flush=True)
    importlib.import_module(f"dev.benchmarks.{names[0]}").main()
    sys.exit(f"{len(benchmarks.missed)} over the limit" if benchmarks.missed else 0)


if __name__ == "__main__":
    main()

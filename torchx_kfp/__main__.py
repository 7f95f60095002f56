"""The program ``torchx-kfp``, and ``python -m torchx_kfp``."""

import sys


def main() -> None:
    """Runs the command line. Ctrl-C ends it with one line also while it is imported."""
    try:
        from torchx_kfp.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted.\n")
        sys.exit(130)


if __name__ == "__main__":
    main()

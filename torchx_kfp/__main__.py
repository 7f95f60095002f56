"""The program ``torchx-kfp``, and ``python -m torchx_kfp``."""

import sys

from torchx_kfp.errors import MissingExtraError


def main() -> None:
    """Run the command line. Ctrl-C ends it with one line, even while the command is being imported."""
    try:
        from torchx_kfp.extras import require

        require("pipelines", "The command torchx-kfp")
        from torchx_kfp.cli import main as run

        run()
    except MissingExtraError as error:
        sys.stderr.write(f"Error: {error}\n")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted.\n")
        sys.exit(130)


if __name__ == "__main__":
    main()

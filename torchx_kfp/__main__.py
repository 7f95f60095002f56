"""The program ``torchx-kfp``, and ``python -m torchx_kfp``."""

import os
import sys

from torchx_kfp.errors import MissingExtraError


def main() -> None:
    """Run the command line. Ctrl-C ends it with one line, even while the command is being imported."""
    _open_closed_streams()
    try:
        from torchx_kfp.common.extras import require

        require("pipelines", "The command torchx-kfp")
        from torchx_kfp.entrypoints.cli import main as run

        run()
    except MissingExtraError as error:
        sys.stderr.write(f"Error: {error}\n")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted.\n")
        sys.exit(130)


def _open_closed_streams() -> None:
    """Open /dev/null for an output that was closed before the program began (``>&-``).

    The next file that the program opens would take its place.
    """
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_WRONLY)
            if null != descriptor:
                os.dup2(null, descriptor)
                os.close(null)
            setattr(sys, name, os.fdopen(descriptor, "w"))


if __name__ == "__main__":
    main()

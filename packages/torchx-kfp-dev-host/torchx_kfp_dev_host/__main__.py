"""``python -m torchx_kfp_dev_host`` is ``torchx-kfp dev-host``."""

import sys

from torchx_kfp.entrypoints.cli import cli

if __name__ == "__main__":
    sys.exit(cli(["dev-host", *sys.argv[1:]], prog_name="torchx-kfp"))

"""``python -m torchx_kfp``: the program without its script."""

from torchx_kfp.cli import main

main()

"""The page of runs that ``torchx-kfp ui`` serves on this machine."""

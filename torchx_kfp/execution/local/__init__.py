"""The local runner: ``torchx_kfp.local`` is its public side."""

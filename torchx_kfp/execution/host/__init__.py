"""Runs on a KFP host: ``torchx_kfp.host`` is the public side."""

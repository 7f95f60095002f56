"""``torchx-kfp doctor``: checks of this machine, a KFP host and storage, which yield verdicts and raise nothing."""

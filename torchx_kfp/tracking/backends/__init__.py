"""Trackers for ``torchx.tracker``: that of every tracked stage, and MLflow. TorchX loads them through entry points."""

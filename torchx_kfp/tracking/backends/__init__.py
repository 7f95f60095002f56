"""Trackers of ``torchx.tracker``: the one of every tracked stage, and MLflow. TorchX loads them by entry points."""

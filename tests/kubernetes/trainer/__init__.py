"""Kubeflow Trainer's real controller: the module that it is built from, and its start."""

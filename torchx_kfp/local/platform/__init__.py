"""Kubernetes settings of a pipeline, and their effect on this machine."""

"""Run, follow and report KFP pipelines, locally and on a host; nothing in it needs TorchX."""

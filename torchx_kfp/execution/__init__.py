"""Run, follow and report KFP pipelines, on this machine and on a host; nothing here needs TorchX."""

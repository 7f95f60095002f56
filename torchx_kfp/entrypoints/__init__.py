"""Programs that use the whole package: the command line, and a scheduler for TorchX."""

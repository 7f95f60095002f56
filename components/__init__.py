"""TorchX components of the example pipelines, with their applications."""

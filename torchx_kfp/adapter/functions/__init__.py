"""TorchX component functions as KFP components."""

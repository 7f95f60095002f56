"""Calling TorchX component functions to see which AppDef they build of the inputs of a KFP component."""

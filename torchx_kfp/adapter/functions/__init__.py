"""Call TorchX component functions to see which AppDef they build from the inputs of a KFP component."""

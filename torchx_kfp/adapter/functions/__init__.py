"""TorchX component functions as KFP components: calls with stand-ins show which AppDef a function builds."""

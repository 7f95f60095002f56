"""Searching for a network that is accurate and small: a TorchX component, its application, and Ax."""

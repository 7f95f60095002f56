"""Engines, which run an attempt at a stage as a process or as a container."""

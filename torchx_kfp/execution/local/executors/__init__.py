"""Run an attempt at a stage as a process or in a container."""

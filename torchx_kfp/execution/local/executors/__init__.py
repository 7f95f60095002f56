"""What runs an attempt at a stage: a process, or a container."""

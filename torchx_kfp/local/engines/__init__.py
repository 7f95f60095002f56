"""What runs an attempt at a stage: a process of this machine, or a container."""

"""A pipeline's Kubernetes settings, and their effect on this machine."""

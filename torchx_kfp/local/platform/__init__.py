"""What a pipeline asks of Kubernetes, and what becomes of it on this machine."""

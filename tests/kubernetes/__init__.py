"""A real Kubernetes control plane for tests, and a double of the kubelet."""

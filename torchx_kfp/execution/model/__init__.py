"""Models of what KFP's backend, Argo and the kubelet do with a compiled pipeline."""

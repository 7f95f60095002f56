"""What is said of a run beside its results. Each statement is a file of its own."""

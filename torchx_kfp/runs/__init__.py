"""A run, wherever it runs: its events, its state, and the folder that keeps them."""

#: The folder, below the current directory, in which each run has a folder named by its run id.
OUTPUT_DIR = "local_outputs"

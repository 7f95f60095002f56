"""A run, wherever it runs: its events, its state, and the folder that keeps them."""

#: Where runs keep their logs and outputs, each in a folder named by its run id; below the current directory.
OUTPUT_DIR = "local_outputs"

"""A run, wherever it runs: its events, its state, and the folder that keeps them."""

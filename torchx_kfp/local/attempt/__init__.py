"""One attempt at a stage: its preparation, its execution, and its outputs."""

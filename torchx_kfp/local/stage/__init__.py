"""One attempt at a stage: what is made ready for it, and what it leaves."""

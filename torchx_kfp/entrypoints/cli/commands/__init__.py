"""The commands, each in its own module, which imports none of the others."""

"""The commands, each in a thin module."""

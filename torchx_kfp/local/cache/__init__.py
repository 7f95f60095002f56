"""Stages that need not run again: their keys, and the entries of earlier runs."""

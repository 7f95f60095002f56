"""Stages that need not run again: their keys, and what earlier runs have left."""

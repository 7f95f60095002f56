"""Stores keep the files of a tracker: in a local directory, or on any fsspec file system."""

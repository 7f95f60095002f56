"""Stores hold the files of a tracker: in a local directory, or on any file system of fsspec."""

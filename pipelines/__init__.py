"""Example pipelines: each file is one, named like the file."""

"""The compiled pipeline as data. This package does not run stages."""

"""The compiled pipeline as data. Nothing here runs a stage."""

"""Runs on a KFP host: submitted through its API, and read from it as the events that local runs have."""

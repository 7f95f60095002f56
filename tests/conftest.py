"""Fixtures that several test modules share."""

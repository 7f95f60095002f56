"""Decides how many resources a training needs, based on its data."""

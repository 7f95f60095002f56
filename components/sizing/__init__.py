"""Decides how much of a machine a training needs, from the data that it is for."""

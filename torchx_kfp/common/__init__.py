"""Helpers that every package may use: texts, files, extras, and the SDK of KFP."""

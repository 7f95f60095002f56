"""Tools of developers: generated files, measures, mutants, and CI's scripts."""

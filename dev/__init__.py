"""What develops the project: what writes its generated files, measures, mutants, benchmarks, and CI's scripts."""

"""What develops the project: what writes its generated files, mutants, benchmarks, and CI's scripts."""

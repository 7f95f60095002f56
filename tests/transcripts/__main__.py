"""Rewrite the outputs of transcripts: ``python -m tests.transcripts [FILE...]``."""

from tests.transcripts import main

main()

"""The form of a compiled stage, for programs that write stages and for those that read them.

Only these modules know how a stage's command, its variables and its inputs are put together. Each module has the
encoder and the decoder of one part. They use the standard library.
"""

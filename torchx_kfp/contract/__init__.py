"""The form of compiled stages, for programs that write or read them.

Only these modules know how a stage's command, variables and inputs are put together. Each module has the encoder and
the decoder of one part. They use only the standard library.
"""

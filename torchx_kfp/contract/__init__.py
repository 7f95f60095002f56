"""The form of compiled stages, for programs that write or read them.

Only these modules know the format of a stage's command, variables and inputs. Each module encodes and decodes one
part. They use only the standard library.
"""

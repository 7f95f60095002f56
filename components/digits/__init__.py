"""Recognizing hand-written digits: TorchX components in ``component``, one application in each other module.

The applications are started as ``python -m components.digits.<application>``. They are found from the working directory
or ``PYTHONPATH``: here that is this repository, in a container the working directory of an image that holds it (see the
``Dockerfile`` beside this file).
"""

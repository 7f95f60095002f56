"""Recognizing hand-written digits: TorchX components in ``component``, one application in each other module.

Stages run ``python -m components.digits.<application>``, which Python finds in the working directory or PYTHONPATH:
locally this repository, in a container the working directory of the image (see the ``Dockerfile`` in this folder).
"""

"""Recognizing hand-written digits with a small network that several processes train together (PyTorch's DDP).

TorchX components are in ``component``, one application in each other module. The training needs the extra ``ddp``.
"""

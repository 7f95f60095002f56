"""TorchX components of the digits pipeline: their programs, arguments, images and resources.

Their values may be pipeline channels. TorchX can also run each by itself, for example
``torchx run -s local_cwd components/digits/component.py:train --C 10 --gamma 0.01``, given the tracker's variables.
"""
# No `from __future__ import annotations`: TorchX reads the parameters' types from the functions.

from torchx import specs

#: An image that has torchx-kfp and scikit-learn, and this repository as its working directory.
IMAGE = "torchx-kfp-examples:1"


def prepare(artifacts: str = "", seed: int = 0, image: str = IMAGE) -> specs.AppDef:
    """Splits scikit-learn's digits into training, validation and test data.

    Args:
        artifacts: folder (local, or an fsspec URL) for data and models; empty: beside the tracker base
        seed: seed of the random split
        image: image that holds the application
    """
    return _python_app(
        "prepare", "components.digits.prepare", f"--artifacts={artifacts}", f"--seed={seed}", image=image
    )


def train(C: float, gamma: float, image: str = IMAGE) -> specs.AppDef:
    """Trains a support vector machine on the data of prepare, and measures it on the validation data.

    Args:
        C: weight of errors against the margin
        gamma: width of the kernel
        image: image that holds the application
    """
    return _python_app("train", "components.digits.train", f"--C={C}", f"--gamma={gamma}", image=image)


def select(image: str = IMAGE) -> specs.AppDef:
    """Names the best of the trials that it reads.

    Args:
        image: image that holds the application
    """
    return _python_app("select", "components.digits.select_best", image=image)


def evaluate(image: str = IMAGE) -> specs.AppDef:
    """Measures the model of select on the test data of prepare.

    Args:
        image: image that holds the application
    """
    return _python_app("evaluate", "components.digits.evaluate", image=image)


def deploy(threshold: float = 0.95, image: str = IMAGE) -> specs.AppDef:
    """Records whether the model of select is good enough to be deployed.

    Args:
        threshold: the lowest accuracy on the validation data that is good enough
        image: image that holds the application
    """
    return _python_app("deploy", "components.digits.deploy", f"--threshold={threshold}", image=image)


def _python_app(name: str, module: str, *args: str, image: str) -> specs.AppDef:
    role = specs.Role(
        name=name,
        image=image,
        entrypoint="python",
        args=["-m", module, *args],
        resource=specs.Resource(cpu=1, gpu=0, memMB=1024),
    )
    return specs.AppDef(name=name, roles=[role])

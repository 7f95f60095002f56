"""Writes the entry points in their order: setuptools sorts them, and the first one is TorchX's default scheduler."""

from pathlib import Path

from setuptools import setup
from setuptools.command.egg_info import egg_info


class InOrder(egg_info):
    """Makes the metadata."""

    def run(self) -> None:
        """Make it, and write the entry points again."""
        super().run()
        groups = self.distribution.entry_points
        lines = [line for group, points in groups.items() for line in (f"[{group}]", *points)]
        self.write_file("entry points", str(Path(self.egg_info, "entry_points.txt")), "\n".join([*lines, ""]))


setup(cmdclass={"egg_info": InOrder})

"""The configuration of Sphinx: ``make docs`` builds these pages, with warnings as errors and without the network."""

from __future__ import annotations

import torchx_kfp

project = "torchx-kfp"
author = "the torchx-kfp authors"
project_copyright = "the torchx-kfp authors. Apache-2.0"
release = version = torchx_kfp.__version__

extensions = ["myst_parser"]
exclude_patterns = ["_build"]

# Links to headings are those that GitHub makes, so that pages can be read there as well.
myst_heading_anchors = 4

html_theme = "furo"
html_title = f"torchx-kfp {release}"
html_static_path = ["_static"]
html_css_files = ["page.css"]
html_copy_source = False
html_show_sphinx = False
smartquotes = False
pygments_style = "friendly"
pygments_dark_style = "monokai"

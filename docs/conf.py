"""Sphinx's configuration: pages in MyST Markdown, the API reference from the docstrings."""

from importlib.metadata import version as installed

project = "AutoDIAL"
author = "The autodial-layers authors"
release = version = installed("autodial-layers")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
html_theme = "furo"
html_title = "AutoDIAL"
exclude_patterns = ["_build"]
myst_heading_anchors = 3
default_role = "code"  # docstrings mark code as Markdown does
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
nitpicky = False

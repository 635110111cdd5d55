"""Settings of Sphinx, which `python -m docs.build` runs on its pages of Markdown."""

import kinformer

project = "kinformer"
author = "kinformer contributors"
version = release = kinformer.__version__
extensions = ["myst_parser"]
myst_heading_anchors = 4
smartquotes = False
highlight_language = "text"
html_theme = "furo"
html_title = f"kinformer {release}"
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
html_static_path = ["site.css"]
html_css_files = ["site.css"]
templates_path: list[str] = []

"""Settings of the documentation site.

``./launch/docs.sh`` builds the site. Warnings are errors, so a broken link fails the build.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import afjax

project = "afjax"
author = "the afjax authors"
project_copyright = "the afjax authors"
version = release = afjax.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "reference",
]
exclude_patterns = ["_build"]

# Headings get the same anchors as on GitHub.
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 4
# Use typographic quotes, but keep two dashes, because they begin a flag.
smartquotes_action = "qe"
# Pages show the notebooks' stored outputs; tests/docs/test_notebooks.py runs the notebooks.
nb_execution_mode = "off"

# The API reference.
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 80
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_custom_sections = ["Reference"]
# The copy button omits prompts and output.
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

html_theme = "furo"
html_title = "afjax"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_theme_options = {"navigation_with_keys": True}

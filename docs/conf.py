"""How sphinx builds these pages: `make docs`, warnings are errors, nothing from the network."""

import os
import re
import sys
from importlib.metadata import distribution
from pathlib import Path

import pdecnn

sys.path.insert(0, str(Path(__file__).parent))  # for command_line and gallery_order

project, author = "pdecnn", "pdecnn contributors"
version = release = pdecnn.__version__
copyright = "pdecnn contributors, MIT licence"
language = "en_GB"

extensions = [
    "command_line",
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "sphinx.ext.mathjax",
    "sphinx_gallery.gen_gallery",
]
smartquotes = False  # what is typed stands as it is typed: --flags and 'names'
exclude_patterns = [
    "_build",
    "results/paper/runs",
    "results/paper/stl10-as-printed/runs",
    "gallery/*.ipynb",
]
nitpicky = True

myst_enable_extensions = ["amsmath", "attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = "pdecnn"
html_favicon = "images/favicon.svg"
html_copy_source = False
html_show_copyright = False
html_theme_options = {"top_of_page_buttons": []}

# Formulas must show without a network: one file of MathJax, from a package of PyPI.
_mathjax = distribution("sphinx-mathjax-offline")
html_static_path = [
    "pages.css",
    str(_mathjax.locate_file("sphinx-mathjax-offline/static/mathjax/tex-svg.js")),
]
html_css_files = ["pages.css"]
html_extra_path = ["playground.html"]
mathjax_path = "tex-svg.js"

autodoc_member_order = "bysource"
autodoc_typehints = "description"  # a line a parameter
autodoc_typehints_format = "short"
nitpick_ignore_regex = [("py:(class|obj)", r".*")]  # types of torch and of the inside have no page
autodoc_class_signature = "mixed"
autodoc_preserve_defaults = True
toc_object_entries_show_parents = "hide"

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    # Which examples are run for their pictures; the others are shown without.
    "filename_pattern": os.environ.get("GALLERY", r"\.py$"),
    "ignore_pattern": r"(chirps|rotations|vowels)\.py$",  # they only write the data of recipes
    "within_subsection_order": "gallery_order.GalleryOrder",
    "image_srcset": ["2x"],
    "show_memory": False,
    "show_signature": False,
    "download_all_examples": False,
    "write_computation_times": False,
    "doc_module": ("pdecnn",),
    "reference_url": {"pdecnn": None},
    "copyfile_regex": r"",
    "remove_config_comments": True,
    "plot_gallery": "True",
    "abort_on_example_error": True,
}


def _escape(app, what, name, obj, options, lines):
    """Docstrings have names in single backquotes, norms |Y| and tuples *spatial.

    None of them is to be the markup that reStructuredText would see.
    """
    marked = r"(`[^`]+`|(?<!\w)\*\w[^*\n]*\*(?!\w))"
    parts = re.split(marked, "\n".join(lines))
    parts[::2] = [re.sub(r"([|*]|_(?!\w))", r"\\\1", part) for part in parts[::2]]
    parts[1::2] = [f"`{part}`\\ " if part[0] == "`" else part for part in parts[1::2]]
    lines[:] = "".join(parts).split("\n")


def _open_gallery(app, name, source):
    """Links to examples, which lead somewhere in a repository browser, lead to their pages here."""
    pages = re.sub(r"\]\((?:\.\./)*examples/(\w+)\.py\)", r"](/gallery/\1)", source[0])
    source[0] = re.sub(r"\]\((?:\.\./)*examples\)", "](/gallery/index)", pages)


def _figure_first(app, name, source):
    """A page of the gallery begins with what its program draws."""
    figure = re.search(r"^\.\. image-sg::.*\n(?:   :.*\n)+", source[0], flags=re.MULTILINE)
    if name.startswith("gallery/") and figure:
        without = source[0].replace(figure[0], "")
        place = without.index(".. GENERATED FROM PYTHON SOURCE LINES")
        source[0] = f"{without[:place]}{figure[0]}\n{without[place:]}"


def setup(app):
    """Connect what docstrings and pages need."""
    app.connect("autodoc-process-docstring", _escape)
    app.connect("source-read", _open_gallery)
    app.connect("source-read", _figure_first)

"""How Sphinx builds these pages: `make docs`, in which every warning is an error. Writes no page by itself."""

from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx
from typer.testing import CliRunner

from sdpa_onnx.cli.main import app
from sdpa_onnx.version import __version__

project = "sdpa_onnx"
copyright = "The sdpa_onnx authors, Apache-2.0"  # noqa: A001 - Sphinx's name
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"sdpa_onnx {__version__}"
html_copy_source = False
# No page loads anything from another address.
html_theme_options = {"source_edit_link": "", "footer_icons": []}

# A link to a heading is what GitHub makes of it, so that the pages read the same in both places.
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_block"]
suppress_warnings: list[str] = []

# Docstrings are Google's; `name` in one pair of backticks is code, as in Markdown.
default_role = "code"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_custom_sections = ["Source"]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True


class CommandHelp(Directive):
    """What `sdpa-onnx COMMAND --help` prints, so that the page cannot differ from the command."""

    optional_arguments = 1
    option_spec: ClassVar = {}

    def run(self) -> list[nodes.Node]:
        shown = CliRunner().invoke(app, [*self.arguments, "--help"], env={"COLUMNS": "80"}, prog_name="sdpa-onnx")
        if shown.exit_code != 0:
            raise self.error(f"sdpa-onnx {' '.join(self.arguments)} --help failed: {shown.output}")
        return [nodes.literal_block(shown.output, shown.output, language="text")]


def setup(sphinx: Sphinx) -> None:
    sphinx.add_directive("command-help", CommandHelp)

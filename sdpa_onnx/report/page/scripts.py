"""The scripts of a page, and text that is safe in them.

They are Vega-Embed from vl-convert, DataTables from `vendor`, and our own.
"""

import base64
import functools
import hashlib
import json
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

from sdpa_onnx.errors import SdpaOnnxError
from sdpa_onnx.graph.files.whole_file import write_whole
from sdpa_onnx.measure.calibration import cache_folder

__all__ = ["chart_script", "json_text", "page_file", "script_hash", "table_script"]

# Characters of JSON that could end a script element, begin a comment in it, or end a line of JavaScript.
_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


@functools.cache
def chart_script() -> str:
    """Vega, Vega-Lite and Vega-Embed in one script, which works without a network; about 0.9 MB.

    It comes from the package that draws the SVG too, so that both draw the same. Bundling takes seconds, so that the
    result is kept in the user's cache folder, by version.
    """
    kept = cache_folder() / f"vega-{version('vl-convert-python')}.js"
    text = _read(kept)
    if text is None:
        import vl_convert  # late: loads a JavaScript engine

        text = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
        _keep(kept, text)
    # In a function of its own: at the top level its names would be those of every other script.
    return f"(()=>{{{_in_element(text)}}})();"


def table_script() -> str:
    """DataTables: sorts, filters and pages tables."""
    return _in_element(page_file("vendor/dataTables.min.js"))


def page_file(name: str) -> str:
    """A file of this folder."""
    return (files("sdpa_onnx.report") / "page" / name).read_text(encoding="utf-8")


def json_text(value: Any) -> str:
    """JSON that is safe inside a script element; the same value gives the same text."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True, allow_nan=False)
    return "".join(_ESCAPES.get(one, one) for one in text)


def script_hash(text: str) -> str:
    """The hash in the content security policy; the browser runs only scripts that match one."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _in_element(script: str) -> str:
    """A script that cannot end the element around it; in JavaScript both changes keep the meaning of strings."""
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _read(path: Path) -> str | None:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    return text if "vegaEmbed" in text[-200:] else None


def _keep(path: Path, text: str) -> None:
    """Keep the bundle for the next page; a folder that cannot be written only costs time."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text.encode())
    except (OSError, SdpaOnnxError):
        return

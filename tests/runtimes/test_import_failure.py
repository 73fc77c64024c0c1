"""An import that fails names the package, whatever the package raises."""

import importlib
import sys
from pathlib import Path

import pytest

from sdpa_onnx.runtimes.import_failure import import_failure


@pytest.mark.parametrize(
    ("files", "package"),
    [
        ({"altair.py": "raise ImportError('cut short')"}, "altair"),
        ({"altair.py": "import altair_part", "altair_part.py": "raise ImportError('cut short')"}, "altair_part"),
        ({"altair.py": "import vl_convert", "vl_convert.py": "raise ImportError('cut short')"}, "vl_convert"),
    ],
    ids=["itself", "what it imports", "other name on the index"],
)
def test_broken_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], package: str
) -> None:
    """An ImportError without a name has that of the package whose code raised it."""
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] in {"altair", "altair_part", "vl_convert"}]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ImportError) as caught:
        importlib.import_module("altair")
    installed = {"vl_convert": "vl-convert-python"}.get(package, package)
    assert import_failure(caught.value) == (
        f"The package '{package}' is installed and cannot be imported: cut short. "
        f"Install it again: pip install --force-reinstall {installed}."
    )

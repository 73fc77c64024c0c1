"""Files that several pages start from: each is made once, by what the README and the tutorial say."""

import fcntl
import subprocess
import sys
from pathlib import Path

from tests.docs.pages import README, ROOT, blocks

_COMMANDS = {
    "block.onnx": ["export", "mymodel.py:Block", "-o", "block.onnx"],
    "sdpa18.onnx": ["export", "sdpa", "-o", "sdpa18.onnx", "--opset", "18"],
    "sdpa23.onnx": ["export", "sdpa", "-o", "sdpa23.onnx"],
    "encoder18.onnx": ["export", "encoder-self", "-o", "encoder18.onnx", "--opset", "18"],
}
_COPIES = {name: ROOT / name for name in ("models", "reports/findings", "reports/reference")}


def module_text() -> str:
    """The module of the README."""
    return next(block.text for block in blocks(README) if block.note("file") == "mymodel.py")


def prepared(name: str, store: Path) -> Path:
    """A file that a page starts from; made in `store` by the first that asks for it."""
    if name in _COPIES:
        return _COPIES[name]
    store.mkdir(parents=True, exist_ok=True)
    with (store / "lock").open("w") as lock:  # tests of several processes share the store
        fcntl.flock(lock, fcntl.LOCK_EX)
        (store / "mymodel.py").write_text(module_text(), encoding="utf-8")
        if not (store / name).exists():
            subprocess.run([sys.executable, "-m", "sdpa_onnx", *_COMMANDS[name]], cwd=store, check=True)
    return store / name

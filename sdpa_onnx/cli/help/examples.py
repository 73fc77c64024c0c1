"""The examples of `--help`, by command, without the name of the program. A test parses each of them."""

__all__ = ["EXAMPLES"]

EXAMPLES: dict[str, tuple[str, ...]] = {
    "run": ("run", "run ci --out reports/today", "run --resume"),
    "export": (
        "export mymodel.py:Block -o block.onnx",
        "export sdpa -o sdpa.onnx --q-num-heads 8 --kv-num-heads 2 --head-dim 64 --causal",
        "export llama-3-8b/self -o llama.onnx --form auto --at q_seq_len=512",
    ),
    "inspect": ("inspect block.onnx", "inspect block.onnx --no-run --json"),
    "convert": (
        "convert block.onnx -o fast.onnx --form blocked",
        "convert block.onnx -o fast.onnx --form auto --at q_seq_len=512 --at q_seq_len=2048",
    ),
    "verify": (
        "verify block.onnx",
        "verify block.onnx --runtime ort-cpu --runtime openvino --size q_seq_len=128",
        "verify block.onnx --against mymodel.py:Block --quiet",
    ),
    "bench": ("bench block.onnx", "bench block.onnx fast.onnx --at q_seq_len=512"),
    "compare": ("compare reports/main reports/branch --markdown comment.md",),
    "saturation": ("saturation", "saturation --head-dim 64 --kv-seq-len 512"),
    "conformance": ("conformance", "conformance --runtime openvino --only causal --opset 23"),
    "fuzz": ("fuzz --runtime ort-cpu --cases 1000", "fuzz --seconds 60 --keep found"),
    "reduce": ("reduce block.onnx --runtime ort-cpu --bundle report.zip",),
    "report": ("report reports/today",),
}

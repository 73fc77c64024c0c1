"""`python -m sdpa_onnx` is `sdpa-onnx`."""

from sdpa_onnx.cli.main import main

if __name__ == "__main__":
    main()

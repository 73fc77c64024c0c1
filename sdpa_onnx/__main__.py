"""`python -m sdpa_onnx` is `sdpa-onnx`."""

import sys

if __name__ == "__main__":
    try:
        from sdpa_onnx.cli.main import main

        main()
    except KeyboardInterrupt:  # before the command line stands
        if sys.stderr is not None:
            sys.stderr.write("sdpa-onnx: Interrupted.\n")
        raise SystemExit(130) from None

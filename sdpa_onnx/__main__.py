"""The command `sdpa-onnx`, which is also `python -m sdpa_onnx`."""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line in a supervised process."""
    try:
        from sdpa_onnx.cli.process.supervision import supervised

        supervised(_command_line)
    except KeyboardInterrupt:  # before the command line handles it
        if sys.stderr is not None:
            sys.stderr.write("sdpa-onnx: Interrupted.\n")
        raise SystemExit(130) from None


def _command_line() -> None:
    from sdpa_onnx.cli.main import main

    main()


if __name__ == "__main__":
    main()

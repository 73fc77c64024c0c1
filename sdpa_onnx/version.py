"""The version, in the one place that the build and the code read it from."""

__all__ = ["__version__"]

__version__ = "0.1.0.dev0"

"""A language model served to every app on this machine."""

__all__ = ["__version__"]

__version__ = "0.1.0"

"""The version of the package, in a module of its own so that all others may import it."""

__version__ = "0.2.0.dev0"

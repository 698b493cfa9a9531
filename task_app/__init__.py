"""A Crafter-style task app with event-level step rewards, and the trainer that learns from them.

The package is layered; each module imports only from layers below its own (see
`[tool.importlinter]` in `pyproject.toml`). This file imports nothing, so that the command line
answers at once.
"""

__version__ = "0.1.0"

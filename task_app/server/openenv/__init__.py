"""OpenEnv's wire: one task app served to trainers that speak it. An app of its own, beside the hosted one.

What the package `openenv` 0.10 puts on the wire is written down in wire.py; the package itself is not imported.

wire.py   the messages and their models
game.py   one environment: reset, step, state, as its client sees them
mcp.py    the same environment's tools as JSON-RPC calls
app.py    `create_openenv_app`: routes, /ws, keys, bounds
serve.py  the same on a real port
"""

from task_app.server.openenv.app import create_openenv_app

__all__ = ["create_openenv_app"]

"""What every server of ours shares: keys, error bodies, body limits, and the port it listens on.

auth.py    the key check
errors.py  one JSON shape for every error, which never echoes the input
limits.py  the largest body
ports.py   binding a port, and who holds it when it is taken
serving.py uvicorn that says when it serves
previous.py, process.py  the server of ours that holds a port; which process is meant
logs.py, rate.py  a line a request; requests a minute
"""

from typing import Final

__all__ = ["SERVICE"]

SERVICE: Final = "crafter-task-app"
"""What our servers call themselves in `/health`."""

"""The hosted task app.

    requests.py   what clients may send
    responses.py  an episode as the response its clients read
    rollouts.py   request → plan, policy, flags → one stored episode
    app.py        `create_app`: routes, keys, errors, limits
    serve.py      the same on a real port
"""

from task_app.server.app import create_app

__all__ = ["create_app"]

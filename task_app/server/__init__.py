"""The hosted task app.

requests.py   what clients may send
resolve.py    a request over the server's config: task, flags, limits, policy
rollouts.py   playing it: one episode, stored once, whoever ends it
responses.py  an episode as the response its clients read
service.py    how many play and wait at once, and how long; what the app says of itself
app.py        `create_app`: routes, keys, errors, limits
serve.py      the same on a real port
"""

from task_app.server.app import create_app

__all__ = ["create_app"]

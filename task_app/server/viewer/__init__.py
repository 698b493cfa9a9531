"""The viewer page: runs, groups and episodes of a trace database in a browser. Reads only.

routes.py   the pages' addresses, in whichever app shows them
app.py      an app that shows nothing else, for `task-app traces view`
login.py    the one lock before every page: key, cookie, host name, response headers
queries.py  what a page may ask
data.py     lists: runs, groups, episodes, and what can be filtered by
detail.py   one episode in full; the members of a group side by side
frames.py   pictures of the world, made again by replay
static/     one HTML shell and plain JavaScript modules; nothing is loaded from elsewhere
"""

from task_app.server.viewer.routes import Viewer

__all__ = ["Viewer"]

"""Step-wise sessions: a client makes the decisions of an episode one request at a time.

bodies.py    what clients may send
table.py     what makes a session, in a SQLite file beside the trace database, shared by all worker processes
sessions.py  living episodes: begun, rebuilt from the table in whichever worker a request reaches, ended, expired
policies.py  the app's own policies, asked for the decision a session is to make
routes.py    `add_to`: the routes, in the hosted app
"""

from task_app.server.stepwise.routes import add_to

__all__ = ["add_to"]

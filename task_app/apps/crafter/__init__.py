"""The Crafter task app: survive, gather and craft in a procedurally generated 64×64 world.

data.py     the `crafter` package's own data
rules.py    names and limits made of it
options.py  what a task may set
engine/     the world: the package's rules, reproducible and fast
view.py     what a player sees: the 9×7 map and the status bar
text.py     the view as words
tool.py     `interact_many`: schema, prompt, parsing, grammar
scripted.py random player; expert.py  player that knows the rules; planner.py  teacher that searches
render.py   pictures of a state, apart from the game
app.py      all of it as one `TaskApp`
"""

from task_app.apps.crafter.app import CrafterApp

__all__ = ["APP"]

APP = CrafterApp()

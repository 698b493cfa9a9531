"""The Crafter world: one game, two engines that play it identically, and the environment around them.

protocol.py   what an engine promises; the full state and its hash; sealed snapshots
rules.py      the rules as tables, from the `crafter` package's data
rng.py        NumPy's legacy generator, number for number
noise.py      OpenSimplex for arrays
worldgen.py   how a world is made
world.py      the state of a game
creatures.py  what everything but the player does, in plain Python
reference.py  the game in plain Python
native.py     the game in C
check.py      whether a state given from outside is possible
choice.py     which engine plays
env.py        `CrafterEnv`, the task app's environment
"""

from task_app.apps.crafter.engine.choice import make_engine, which_engine
from task_app.apps.crafter.engine.env import ENGINE, CrafterEnv
from task_app.apps.crafter.engine.protocol import MAX_SEED

__all__ = ["ENGINE", "MAX_SEED", "CrafterEnv", "make_engine", "which_engine"]

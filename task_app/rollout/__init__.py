"""Making episodes: the one episode loop, groups of them, the same over HTTP, and replay.

episode.py  one episode as a state machine: request → completion → steps → record
group.py    plans (seeds × group size) and playing many episodes, in threads or in lockstep
client.py   the same calls to a hosted task app (imported by name; needs httpx)
replay.py   a stored episode played again: its world at any step, or all its decisions
verify.py   whether a stored episode is what its seed and actions make
"""

from task_app.rollout.episode import EpisodePlan, EpisodeRun, Limits
from task_app.rollout.group import Stop, plan_groups, play, play_to_end

__all__ = ["EpisodePlan", "EpisodeRun", "Limits", "Stop", "plan_groups", "play", "play_to_end"]

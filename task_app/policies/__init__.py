"""Who decides, besides models being trained.

scripted.py  players of the task app: random, expert
replay.py    the actions of stored episodes, played again
chat.py      any OpenAI-compatible endpoint
chat_wire.py how its many servers answer and refuse
endpoint.py  asking one over HTTP: deadlines, retries, errors
http_client.py one exchange with it, by libcurl
"""

from task_app.policies.chat import ChatPolicy, ChatSettings
from task_app.policies.replay import ReplayPolicy
from task_app.policies.scripted import ScriptedPolicy

__all__ = ["ChatPolicy", "ChatSettings", "ReplayPolicy", "ScriptedPolicy"]

"""The Crafter world behind the environment protocol."""

from task_app.apps.crafter.engine.stock import ENGINE, MAX_SEED, CrafterEnv

__all__ = ["ENGINE", "MAX_SEED", "CrafterEnv"]

"""TOML → frozen models. Checks shape (types, ranges, unknown keys); names and combinations are `wiring`'s.

step_rewards.py  the step-reward flags, from TOML or from a request
section.py       what all sections have in common
training.py      the sections about making and training a model
jobs.py          the section of the training service
scale.py         rollouts over several processes or machines
modal.py         machines at Modal
models.py        the other sections, and `Config`
load.py          reading a file, overrides, error messages
"""

from task_app.config.load import describe_validation_error, load_config, parse_overrides
from task_app.config.models import Config, SeedRange

__all__ = ["Config", "SeedRange", "describe_validation_error", "load_config", "parse_overrides"]

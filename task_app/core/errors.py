"""The failure model: one exception per boundary a failure can cross.

    TaskAppError
    ├── ConfigError    a setting is wrong; found before any I/O          → exit 2, HTTP 422
    ├── EnvError       the environment broke or was misused             → status infra_error
    ├── PolicyError    the model endpoint failed, hung or talked garbage → status infra_error
    │   └── ContextOverflow  an episode outgrew the model's context     → status truncated
    ├── StoreError     a database is missing, foreign, locked or damaged → the command stops
    └── TrainError     training cannot go on                            → the run stops, resumable

A *malformed answer* is not an exception: it is data (`ParseFailure` in `core.types`), stored as
the model said it, worth r = 0, and trained on. An infrastructure failure is a missing reward,
never a reward of 0: an episode that ends in `infra_error` has no outcome.

Catch these only at a boundary (episode loop, route, command), keep the cause, say what to do next.
"""

__all__ = [
    "ConfigError",
    "ContextOverflow",
    "EnvError",
    "PolicyError",
    "StoreError",
    "TaskAppError",
    "TrainError",
    "refusal",
]


class TaskAppError(Exception):
    """Base of every error this package raises on purpose; its text is fit to show a user."""


class ConfigError(TaskAppError):
    """A setting names something unknown or holds a value that is not allowed.

    `field` is the dotted name of the setting, empty when the file itself is at fault. `public` is the
    same sentence without the offending value, for answers to strangers; what is allowed may stand in it.
    """

    def __init__(self, message: str, *, field: str = "", public: str = "") -> None:
        super().__init__(message)
        self.field = field
        self.public = public or "the value is not allowed"


def refusal(field: str, sentence: str) -> ConfigError:
    """A ConfigError about `field` whose `sentence` holds nothing of the value, so that strangers may read it too."""
    return ConfigError(f"{field}: {sentence}", field=field, public=sentence)


class EnvError(TaskAppError):
    """The environment failed, or was asked for something its protocol forbids."""


class PolicyError(TaskAppError):
    """The policy's endpoint could not be reached, timed out, refused or answered garbage.

    `retryable` is False when asking again cannot help (a bad key, an unknown model).
    """

    def __init__(self, message: str, *, retryable: bool = True) -> None:
        super().__init__(message)
        self.retryable = retryable


class ContextOverflow(PolicyError):
    """The prompts of `episode_ids` no longer fit the policy's context: those episodes end truncated.

    Nothing was sampled for the others yet; they are asked again.
    """

    def __init__(self, message: str, episode_ids: frozenset[str]) -> None:
        super().__init__(message, retryable=False)
        self.episode_ids = episode_ids


class StoreError(TaskAppError):
    """A trace database cannot be opened, read or written."""


class TrainError(TaskAppError):
    """Training cannot continue; what was recorded before stays."""

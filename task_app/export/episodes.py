"""SFT rows of episodes as they are played: one file an episode, in the export's own form. Reads nothing."""

from __future__ import annotations

import logging
from pathlib import Path

from task_app.core.errors import ConfigError, TaskAppError
from task_app.core.types import Episode
from task_app.export.files import replacing
from task_app.export.rows import RowMaker, facts_of

__all__ = ["EpisodeFiles"]

logger = logging.getLogger(__name__)


class EpisodeFiles:
    """A folder that gets `<episode_id>.jsonl` for each episode with a reward. Safe from many threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @classmethod
    def open(cls, folder: Path) -> EpisodeFiles:
        """Make the folder where it is missing, and try to write in it. Raises ConfigError when that fails."""
        probe = folder / ".writable"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            probe.write_bytes(b"")
            probe.unlink()
        except OSError as error:
            raise ConfigError(
                f"trace folder {folder} cannot be written: {error.strerror or error}; name another with --trace",
                field="server.trace_dir",
            ) from error
        return cls(folder)

    def write(self, episode: Episode) -> str | None:
        """The name of the file written, or None: no reward, no row to learn from, or it failed (then it is logged).

        Never raises: the episode itself is stored already and must not be lost for this.
        """
        try:
            return self._write(episode) if episode.outcome is not None else None
        except (TaskAppError, ValueError) as error:
            logger.error("the trace file of episode %s was not written: %s", episode.episode_id, error)
            return None

    def _write(self, episode: Episode) -> str | None:
        rows = list(RowMaker().rows(*facts_of(episode)))
        if not rows:
            return None
        path = self._folder / f"{episode.episode_id}.jsonl"
        with replacing([path]) as (file,):
            file.write("".join(f"{row}\n" for row in rows).encode())
        return path.name

"""`traces show`."""

from __future__ import annotations

from typing import Annotated

import typer

from task_app.cli.common import DEFAULT_DB, Db, Json

__all__ = ["show"]


def show(
    episode: Annotated[str, typer.Argument(help="Episode id, or the beginning of one.")],
    db: Db = DEFAULT_DB,
    as_json: Json = False,
) -> None:
    """Show an episode, a row per decision: what was said, what ran, and the reward each decision earned."""
    from task_app.analyze.rows import decision_table, episode_heading, episode_row
    from task_app.cli.output import print_json, print_table
    from task_app.store import TraceStore

    with TraceStore.open(db, create=False, read_only=True) as store:
        found = store.episode(episode)
        advantages = store.advantages(found.episode_id)
    if as_json:
        print_json(episode_row(found, decisions=True))
        return
    print_table(episode_heading(found), *decision_table(found, advantages))

"""Stored episodes → SFT data: JSON lines in the form chat models are fine-tuned on (docs/sft_export.md).

filters.py   which episodes, and what each filter removed
rows.py      one decision → one row; the only definition of it
stored.py    what rows are made of, read from a database
sft.py       a whole export
split.py     training and validation files by seed
episodes.py  a file per episode as it is played (`serve --trace`)
files.py     writing beside, then renaming
"""

from task_app.export.episodes import EpisodeFiles
from task_app.export.files import ExportError
from task_app.export.filters import EpisodeFilters
from task_app.export.sft import ExportReport, SftOptions, export_sft

__all__ = ["EpisodeFiles", "EpisodeFilters", "ExportError", "ExportReport", "SftOptions", "export_sft"]

"""What episodes say: statistics, plots and reports, all rebuilt from the record.

stats.py   means with intervals; summaries of episodes
plots.py   the one plotting module: SVG text
report.py  one self-contained HTML file of a training run
"""

from task_app.analyze.stats import Mean, Summary, mean_interval, summarise

__all__ = ["Mean", "Summary", "mean_interval", "summarise"]

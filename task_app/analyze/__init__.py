"""What episodes say: statistics, plots and reports, all rebuilt from the record.

stats.py   means with intervals; summaries of episodes
plots.py   the one plotting module: SVG text
rows.py    episodes and decisions as rows of a table
report.py  one self-contained HTML file of a training run

database.py         a whole trace database in numbers, by these:
columns.py          what is read of it, in one snapshot
players.py          one player's numbers
compare.py          two players on shared worlds
costs.py            tokens and latency in money
cautions.py         warnings and notes, each only when true
database_tables.py  the numbers as tables
database_report.py  the tables and plots as one HTML file
"""

from task_app.analyze.stats import Mean, Summary, mean_interval, summarise

__all__ = ["Mean", "Summary", "mean_interval", "summarise"]

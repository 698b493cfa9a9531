"""`python -m task_app` is `task-app`."""

from task_app.cli import main

main()

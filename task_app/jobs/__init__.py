"""Training as a service, and its client. A job's training is `task-app train` in a process of its own; none runs here.

Serving:
    serve.py     a real port, until told to stop
    app.py       the routes
    requests.py  what a body may hold
    service.py   what the routes do: accept, start, cancel, describe
    accept.py    every reason not to take a job, and the command that trains it
    keys.py      which keys a job may use, and where the task app's may go
    upload.py    files, checked line by line while they arrive
    store.py     jobs, files and events in SQLite; rows.py is what is read from there
    runner.py    the queue; processes started, found again, ended
    keeper.py    the process that starts one training and notes how it ended
    process.py   whether a job's process lives, and signals to it
    follow.py    a training's metrics and log as events
    toml.py      a document as TOML
Asking:
    client.py    the calls over HTTP
    launch.py    a TOML sent to a service, and followed to its end
"""

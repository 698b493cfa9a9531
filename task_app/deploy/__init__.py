"""Task apps, training and rollouts on machines elsewhere (Modal). What runs there is what runs here.

deployment.py  the app as it will be: names, limits, what is sent along; resolved without Modal's package
image.py       what a container holds: the project's pins and its own source
modal_app.py   the app itself, for the `modal` command line; the one module that imports modal at its top
hosting.py     the endpoint in a container: a database of its own, copied to the volume
training.py    training in a container: the run folder on the volume
keeping.py     copies of a database in use
rollouts.py    groups of a rollout on containers of the deployed app
command.py     the command line that deploys or serves, and running it
"""

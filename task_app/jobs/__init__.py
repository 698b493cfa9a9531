"""Training as a service: jobs that are posted, queued, run and watched over HTTP. A job is a process; no torch here."""

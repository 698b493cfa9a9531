"""What every server of ours shares: keys, error bodies, body limits, who holds a port.

    auth.py    the key check
    errors.py  one JSON shape for every error, which never echoes the input
    limits.py  the largest body
    ports.py   who listens on a port
"""

"""One script for each side of `peers.py`."""

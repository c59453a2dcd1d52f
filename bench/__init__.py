"""Measurements, one command each: `python -m bench.startup`."""

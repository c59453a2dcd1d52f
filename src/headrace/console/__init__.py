"""SHOW: pages for people and a JSON API for programs, both made of the monitor's Snapshot."""

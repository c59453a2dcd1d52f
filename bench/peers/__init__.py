"""What people would write without headrace: each a program of its own, started with BOOTSTRAP TOPIC FOLDER RECORDS.

All do the same: JSON records of a topic become typed rows in FOLDER/good, those that do not fit lie in FOLDER/bad.
"""

"""The way back: copies of a live store, a store out of a copy, and what is whole of a damaged one.

Read in this order: points.py (what a backup's folder holds), backup.py (adds a point to it),
restore.py (makes a store of a point), salvage.py (for who has no backup).
"""

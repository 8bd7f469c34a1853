"""Checks that users can run on what they add to Penstock.

sinks.py holds a two-phase sink to what Spark's exactly-once writing rests on.
"""

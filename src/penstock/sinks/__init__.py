"""Sinks: where results go, as participants of an epoch.

postgres.py writes rows into a PostgreSQL database, which show up when their epoch is committed;
postgres_place.py sees to it that only the newest process of a participant does.
"""

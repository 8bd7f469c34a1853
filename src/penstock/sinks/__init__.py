"""Sinks: where results go.

Of streaming queries, batch by batch: two_phase.py (what a sink must be able to do), batches.py (the
steps in which a batch is committed once), staging.py (rows of a task as a file), and the sinks:
collection.py with fitting.py (which frames fit), parquet.py, postgres_batches.py, kafka.py with
kafka_rows.py (rows as record batches).

As participants of an epoch: postgres.py writes rows into a PostgreSQL database, which show up when
their epoch is committed; postgres_place.py sees to it that only the newest process of a participant
does.
"""

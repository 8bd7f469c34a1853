"""Two queries on a real Spark cluster, while its processes are killed, paused, and run out of disk.

    python -m tests.chaos --seconds 600 --seed 7

Read in this order: schedule.py (what happens when, by a seed), world.py (what is read and written,
and what must come out), producer.py and driver.py (programs of their own), standalone.py (Spark's
cluster), processes.py (who runs), harness.py (all of it together), embedded.py (the harness over
these journals; tests/chaos_kafka has the one over Kafka's topics).
"""

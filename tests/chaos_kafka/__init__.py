"""Two queries over Kafka's topics on a real Spark cluster, while brokers and Spark's processes are
killed and paused: one into files, the other one from Kafka to Kafka, its tasks doubled by
speculation.

    python -m tests.chaos_kafka --seconds 600 --seed 7

What all such runs have in common is in tests/chaos. Read in this order: producer.py and driver.py
(programs of their own), promises.py (what producers were told), world.py (what must come out),
totals.py (the same of what was written to Kafka), logs.py (what Kafka's raw logs hold, and the
story of a transfer that Kafka or its client has lost), oracle.py (the first query once more, by raw
logs), harness.py (brokers, and how they are broken).
"""

"""A query over Kafka's topics on a real Spark cluster, while brokers and Spark's processes are
killed and paused.

    python -m tests.chaos_kafka --seconds 600 --seed 7

What all such runs have in common is in tests/chaos. Read in this order: producer.py and driver.py
(programs of their own), world.py (what must come out), oracle.py (the same once more, by raw logs),
harness.py (brokers, and how they are broken).
"""

"""A Kafka cluster's partitions, as columns.

`settings` reads the client settings that Spark and Java know, `client/` speaks to brokers,
`records/` turns the bytes of a fetch into Arrow, `transaction_log` reads what the coordinators
decided, and `log` puts the four together. In this folder Kafka's own words hold: topic, partition,
record, record batch, broker, leader. The library kafka-python (the extra `kafka`) encodes the
messages: docs/decisions/027-how-we-speak-to-kafka.md.
"""

"""What needs a real Kafka. broker.py has the cluster that the tests of a process share."""

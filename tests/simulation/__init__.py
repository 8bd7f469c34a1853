"""The cluster's epochs in a simulated world: `python -m tests.simulation --help`.

The state machines, the decision log and the lease are the real ones. What is around them is not:
time, the key-value store, the records, the disks, and processes that die or stop at any step.
"""

"""`spark.readStream.format("penstock")`: a feed as a stream, every document once.

Read in this order: options.py (what a user may say), schema.py (which columns there are), offset.py
(what Spark keeps of where it is), reader.py (Spark's interface, in the source process), folders.py
(where a feed's queues are), limits.py (how much a batch reads), rows.py (what a task does); and
steps.py (between which steps a crash can come).
"""

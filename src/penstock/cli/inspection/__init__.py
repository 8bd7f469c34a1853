"""What a file or folder of ours is, whether it is sound, and what is in it.

Read in this order: report.py (what is found), kinds.py (which file is which), then what each kind
has: journals.py, producers.py, queues.py, snapshots.py, records.py, frontiers.py; folders.py (many
files at once), view.py (how it is shown). All bytes are read by those who own their format.
"""

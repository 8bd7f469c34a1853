"""The whole shuffle on one thread, with fake time, network and disks, by seed.

    journals, writers ──> member (Slices, Queue) ──> disk ──> consumer
                             │  Session, leader                  │
                             └──────────── cluster ──────────────┴──> oracle

The machines are the real ones; what is around them is played here. `cluster.py` has one run.
"""

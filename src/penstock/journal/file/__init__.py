"""Journals in plain files on one machine's disk: `file:///data/journals`.

    penstock.json                          what this folder is
    collections/orders.json                a collection
    journals/orders/region=eu+000/         a journal
        head                               where it ends, and what of it is durable
        sync.lock                          who is making it durable just now
        00000000000000000000.segment       rows from that offset on
    producers/0d0102030405/                a producer that may write
    retired/0d0102030405/                  a producer that may not write any more

store.py ties it together; journal.py is one journal, ending.py finds its end after a crash, and
repair.py mends it; segment.py is the files of rows, head.py the small file of numbers, ledger.py
the producers; durable.py has files that change as a whole and locks, forks.py what a forked process
leaves to its parent.
"""

"""Money moves between accounts in transactions of Kafka, and two readers keep books of it.

transfers.py has what is moved, books.py what is found in a batch, and waits.py how long it was
hidden: pure. clerks.py moves money by transactional producers, readers.py has the two streaming
queries, screen.py shows them side by side, story.py tells all of it.
"""

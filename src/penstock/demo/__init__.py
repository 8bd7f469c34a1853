"""A self-contained proof: auctions generated, written badly on purpose, and read exactly once.

nexmark.py generates the documents, producers.py writes them with faults, naive.py and truth.py say
what others would make of it, story.py tells it all in order.
"""

"""A self-contained proof: auctions generated, written badly on purpose, and read exactly once.

nexmark.py generates the documents, producers.py writes them with faults, fleet.py runs and kills
the producers, live.py has the query that reads while they write, answers.py what it asks and the
judges, story.py tells it all on a stage.
"""

"""What `penstock doctor` looks at.

Read in this order: findings.py (what is found), machine.py (Python, Java, Spark), place.py (the
disk and the clock under a store), leftovers.py (what crashed runs left in it, and what mends that).
"""

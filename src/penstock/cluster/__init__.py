"""The cluster: what members know of each other."""

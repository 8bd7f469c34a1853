"""A Queue: merges the parcels of all Slices into segments on a member's disk."""

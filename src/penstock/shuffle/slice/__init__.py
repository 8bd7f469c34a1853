"""A Slice: reads a member's journals of one lane, levels and sequences them, and sends parcels."""

"""What members know of each other: a slot for each, which all can read and watch."""

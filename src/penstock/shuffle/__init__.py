"""The shuffled read: journals in, every member's documents in order and on disk out."""

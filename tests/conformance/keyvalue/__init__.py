"""One suite for all key-value stores: what the interface promises, each of them does."""

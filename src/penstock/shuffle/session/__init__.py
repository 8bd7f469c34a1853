"""The Session: which member reads which journal, and up to where everything is complete."""

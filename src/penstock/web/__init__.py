"""The page and the metrics: views of what feeds say of themselves, over HTTP."""

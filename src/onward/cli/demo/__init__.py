"""The demos of `onward demo`: each starts real workers, kills them, and proves the result from the journal and a ledger."""

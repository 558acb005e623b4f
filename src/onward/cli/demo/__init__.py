"""The demos of `onward demo`: they start real workers, kill them, and prove the result."""

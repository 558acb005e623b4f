"""Access: authentication of callers, and the rights of each caller."""

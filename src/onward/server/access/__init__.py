"""Access: who asks, and what each caller may do."""

"""Live progress: one feed of journal records, over server-sent events and WebSockets."""

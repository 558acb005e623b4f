"""Ways in: HTTP, streams, sockets, MCP. Each speaks to the service through a door that knows who asks."""

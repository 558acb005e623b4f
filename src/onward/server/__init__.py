"""The server: HTTP, live streams, WebSockets and MCP over the service. Each request goes through the access checks."""

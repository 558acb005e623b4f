"""The MCP server: the service as MCP tools, resources and tasks."""

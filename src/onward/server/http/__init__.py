"""HTTP: the routes as an ASGI app, and the limits on requests."""

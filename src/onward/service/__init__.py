"""The service: everything that programs and people outside can ask for. The app, the server and the CLI call it."""

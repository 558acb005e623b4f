"""Arguments: the parsers of all commands, and the way from arguments to an open app."""

"""Arguments: the parsers of all commands, and the functions that open an app and resolve ids from them."""

"""The command line: parses arguments, calls the service, prints results for people or as JSON. It makes no decisions."""

"""The command line: arguments → service, and answers that people and programs can read. No decisions."""

"""Checks of code against journals, without effects: the deploy check and the dry run."""

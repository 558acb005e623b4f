"""The store on SQLite: one file, one writer thread, nothing to install."""

"""The database: one port, two implementations, SQL in named files, and the writer that gathers commits."""

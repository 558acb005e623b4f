"""The data types and the decisions. Pure: no I/O and no clock."""

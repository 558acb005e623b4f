"""The words and the decisions. Pure: no I/O, no clock, nothing imported but the standard library."""

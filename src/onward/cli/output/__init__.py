"""Output: terminal screens, tables and trees."""

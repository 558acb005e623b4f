"""Journals, read by pure functions: records in, values out. Open waits, explanations, waterfalls, progress, turns and cuts."""

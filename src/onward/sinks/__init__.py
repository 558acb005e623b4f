"""Ways out: where events go that others want to hear of."""

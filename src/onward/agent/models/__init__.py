"""Models, one file each. `model_of` finds the one that a name means."""

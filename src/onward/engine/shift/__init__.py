"""One shift: the stretch of one task that one worker does, from claim to release."""

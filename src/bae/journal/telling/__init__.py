"""What the lines of a run tell: where a value came from, what was spent, and it all for people."""

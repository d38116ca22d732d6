"""What `bae eval`, `bae optimize` and `--optimized` share: LMs that are taught, metrics by name,
progress in a line, work that a signal can end, and tables."""

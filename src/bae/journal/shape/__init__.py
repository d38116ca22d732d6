"""What the classes of a graph look like, and what it means for runs when they change."""

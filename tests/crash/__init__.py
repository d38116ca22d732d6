"""For crash tests: a graph with effects, the processes that run it, and what is checked when one of
them was killed."""

"""For crash tests: a graph with effects, the processes that run it, and the checks after a process
was killed."""

"""The cost of runs in Postgres that several processes execute: a stored step against a row by hand
and LangGraph's Postgres saver, runs a second with 1, 2 and 3 workers, and how soon a submitted run
begins. Run it with `make bench-scale`."""

"""Runs that have a journal: begun, resumed, answered, forked and replayed."""

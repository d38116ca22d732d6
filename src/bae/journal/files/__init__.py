"""Runs outside of a store: exported to JSON lines and loaded, and what is redacted in them."""

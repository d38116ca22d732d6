"""A journal in Postgres, which processes of many machines share."""

from bae.journal.postgres.journal import PostgresJournal

__all__ = ["PostgresJournal"]

"""A journal in Postgres, which processes of many machines share."""

"""What everything that stores in Postgres shares: addresses, the driver, and the thread that talks
with a database."""

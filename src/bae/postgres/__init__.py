"""The parts that all stores in Postgres share: addresses, the driver, and the thread that talks to
the database."""

"""A team that turns a goal into merged, tested code: a lead that schedules tasks, and workers that
carry them out, each a bae graph."""

"""Everything after a failure: replay, trace, time travel, diagnosis, fixes."""

"""The scripts are run, never imported: importing one would train."""

collect_ignore_glob = ["healthy/*", "bad_batch/*"]

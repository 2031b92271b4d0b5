"""Scripts are run, never imported: importing one would train."""

collect_ignore_glob = ["scripts/*"]

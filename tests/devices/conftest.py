"""Scripts are run, never imported: a device that is registered stays for the whole process."""

collect_ignore_glob = ["scripts/*"]

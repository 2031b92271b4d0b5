"""The environment group: versions, devices and switches."""

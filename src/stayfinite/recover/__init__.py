"""Policies, the ledger, snapshots, and files written completely or not at all."""

"""Carries out the response to an incident."""

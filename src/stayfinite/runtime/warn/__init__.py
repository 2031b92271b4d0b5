"""Warnings while everything is still finite."""

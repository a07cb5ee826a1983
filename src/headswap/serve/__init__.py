"""Runs behind a JSON interface."""

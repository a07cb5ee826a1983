"""Statements about finished runs, made from their files alone; no torch."""

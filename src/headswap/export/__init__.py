"""A run for other people's tools, checked as it is written."""

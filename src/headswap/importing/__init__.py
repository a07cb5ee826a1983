"""Models from elsewhere as bases: nothing is fetched, and no code of theirs is run."""

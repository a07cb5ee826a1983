"""Looking inside a trained model: who looks at whom, what mattered, what a word means where."""

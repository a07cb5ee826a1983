"""Training: one loop for pretraining and fine-tuning, and the checkpoints it leaves."""

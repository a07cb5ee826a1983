"""Decoding: a stepper that knows the model, and strategies that know only the stepper."""

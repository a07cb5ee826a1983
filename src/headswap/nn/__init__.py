"""The parts of a model: visibility, attention, layers, backbone, heads."""

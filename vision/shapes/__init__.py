"""The embedded text-to-image model `shapes`: 64x64 scenes of one or two coloured shapes, trained on the CPU."""

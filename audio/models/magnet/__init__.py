"""MAGNeT: masked models of EnCodec codes, which fill spans of frames in a few steps per codebook."""

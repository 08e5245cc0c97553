"""The decoding loop: target and drafter protocols, batch state, window policies, CUDA graphs and statistics."""

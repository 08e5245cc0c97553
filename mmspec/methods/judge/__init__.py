"""Judge Decoding: a trained classifier of the target's features accepts drafts."""

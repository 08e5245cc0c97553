"""SWIFT: the target without some of its layers, which were chosen beforehand, drafts."""

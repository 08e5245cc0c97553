"""A draft model that stops where it becomes unsure (SpecDec++, AdaEDL)."""

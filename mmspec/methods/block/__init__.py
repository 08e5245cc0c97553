"""Block heads: one pass over mask tokens drafts a whole window (DFlash, DSpark)."""

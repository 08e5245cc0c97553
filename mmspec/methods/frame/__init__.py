"""Frame heads: multi-token prediction of whole frames, for models with a depth decoder."""

"""Models whose frames are a backbone's first token and a depth decoder's codes: CSM, Moshi."""

"""CSM: frames of Mimi codes from a backbone and a depth decoder."""

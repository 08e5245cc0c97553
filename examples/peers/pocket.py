def pocket(*a): pass

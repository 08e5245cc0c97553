"""`mmspec eval`: the speed that recipes gain and the quality that they cost, measured in one run."""

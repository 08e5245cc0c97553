"""One line in a script that runs already: `mmspec.accelerate` lets the methods of an object decode with mmspec."""

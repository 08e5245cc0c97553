"""Classes of other packages under their names, decoded by mmspec: a script changes one import."""

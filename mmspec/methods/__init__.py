"""Methods beyond the core: drafters, heads, acceptance rules and their training, a file or a folder for each paper."""

"""The commands of `mmspec`, one file each. Nothing here imports torch before a command runs."""

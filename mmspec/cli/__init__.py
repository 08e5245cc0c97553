"""The commands of `mmspec`, one file each; nothing here imports torch before a command runs."""

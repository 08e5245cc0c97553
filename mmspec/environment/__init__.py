"""The process that mmspec runs in: what it imports, the processes beside it, and what it has set up."""

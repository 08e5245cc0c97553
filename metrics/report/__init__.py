"""report.html: one file that shows an evaluation and opens without a network."""

"""PersonaPlex: a Moshi that answers speech, in a voice and a role that its prompt names."""

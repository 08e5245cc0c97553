"""Reading what users bring: images, audio, folders of them, and text files of prompts."""

"""HeartMuLa: songs from tags and lyrics, as frames from a backbone and a depth decoder, with guidance."""

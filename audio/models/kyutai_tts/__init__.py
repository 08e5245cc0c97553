"""Kyutai TTS, delayed streams: words fed by a state machine, frames of Mimi codes from a depth decoder."""

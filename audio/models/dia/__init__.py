"""Dia: delayed columns of DAC codes from an encoder-decoder."""

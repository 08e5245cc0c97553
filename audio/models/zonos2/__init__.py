"""ZONOS2: delayed columns of DAC codes from a mixture of experts that reads bytes."""

"""The parts of tools/check-cuda."""

"""A timing model that predicts how long a GPU takes for what the emulator executed."""

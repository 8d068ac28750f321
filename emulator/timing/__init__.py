"""A timing model, which predicts the time that a GPU takes for the launches that the emulator executed."""

"""Tests of the emulator, a plugin that runs other tests on it, and random scenes."""

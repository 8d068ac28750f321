"""Formats that hold Gaussians beside meshes: glTF and OpenUSD. Both store parameters after activation."""

"""General 3D formats that can contain Gaussians: glTF and OpenUSD. Both store parameters after activation."""

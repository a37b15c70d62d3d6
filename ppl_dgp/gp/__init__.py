"""The sparse Gaussian process as a NumPyro program, its mean functions and its moments under uncertain inputs."""

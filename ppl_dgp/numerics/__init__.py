"""Numbers and arrays alone: linear algebra, Gaussians, power means. No sites, no handlers."""
